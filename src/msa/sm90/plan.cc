// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "msa/sm90/attend/attend_prefill.h"
#include "msa/sm90/dense/dense.h"
#include "msa/sm90/plan_state.h"

namespace msa::gpu {
namespace {

Status device_sms(int* sms) {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error != cudaSuccess) return cuda_status(error, "asking the device for its size");
  if (major != 9 || minor != 0)
    return {Code::kUnsupported, "the device's compute capability must be 9.0, got " + std::to_string(major) +
                                    "." + std::to_string(minor)};
  return {};
}

template <typename T>
T* offset(T* pointer, int64_t elements) {
  using Bytes = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Bytes*>(pointer) + 2 * elements);  // bf16
}

}  // namespace

sm90::IndexLaunch Plan::State::index_launch(const Part& part, bool is_prefill) const {
  sm90::IndexLaunch l;
  l.shape = {part.num_requests,     part.total_queries,    part.max_queries,
             part.max_blocks,       config.heads.kv_heads, num_sms,
             config.batch_invariant};
  if (step.shares_index) {
    l.shape.heads = config.index_heads;
    l.share = config.index_share;
    l.has_all_pages = true;
    l.share_list = workspace + layout.share_lists[is_prefill];
  }
  l.selection = config.selection;
  l.key_type = element_of(config.index_type);
  l.cu_seqlens_q = part.cu_seqlens_q;
  l.seq_lens = part.seq_lens;
  l.block_table = part.block_table;
  l.schedule = workspace + layout.schedules[is_prefill];
  l.workspace = workspace + layout.index;
  return l;
}

Status Plan::State::check_index(const IndexArgs& args) const {
  if (Status s = check_pointer("q", args.q); !s.ok()) return s;
  if (Status s = check_pointer("k_pages", args.k_pages); !s.ok()) return s;
  if (Status s = check_pointer("selected", args.selected); !s.ok()) return s;
  return check_blocks(args.num_blocks, 2);
}

Status Plan::State::check_attend(const AttendArgs& args) const {
  if (Status s = check_pointer("q", args.q); !s.ok()) return s;
  if (Status s = check_pointer("kv_pages", args.kv_pages); !s.ok()) return s;
  if (Status s = check_pointer("out", args.out); !s.ok()) return s;
  if (Status s = check_blocks(args.num_blocks, 2 * config.heads.kv_heads); !s.ok()) return s;
  if (!(args.scale > 0)) return {Code::kInvalid, "scale must be positive, got " + std::to_string(args.scale)};
  return {};
}

sm90::AttendDecodeParams Plan::State::decode_params(const Part& part, const AttendArgs& args) const {
  sm90::AttendDecodeParams p;
  p.q = static_cast<const __nv_bfloat16*>(args.q);
  p.kv_pages = args.kv_pages;
  p.kv_scales = args.kv_scales;
  p.selected = args.selected;
  p.block_table = part.block_table;
  p.seq_lens = part.seq_lens;
  p.cu_seqlens_q = part.cu_seqlens_q;
  p.out = static_cast<__nv_bfloat16*>(args.out);
  p.workspace = workspace + layout.decode;
  p.rows = part.total_queries;
  p.num_requests = part.num_requests;
  p.queries_per_request = part.max_queries;
  p.kv_heads = config.heads.kv_heads;
  p.group = group();
  p.top_k = config.selection.top_k;
  p.max_blocks = part.max_blocks;
  p.num_pages = static_cast<int>(args.num_blocks);
  p.scale = args.scale;
  p.splits = sm90::attend_splits(config, part);
  return p;
}

cudaError_t Plan::State::attend_prefill(const Part& part, const AttendArgs& args, cudaStream_t stream) const {
  sm90::AttendPrefillParams p;
  p.q = static_cast<const __nv_bfloat16*>(args.q);
  p.kv_pages = args.kv_pages;
  p.kv_scales = args.kv_scales;
  p.selected = args.selected;
  p.block_table = part.block_table;
  p.seq_lens = part.seq_lens;
  p.cu_seqlens_q = part.cu_seqlens_q;
  p.out = static_cast<__nv_bfloat16*>(args.out);
  p.workspace = workspace + layout.attend;
  p.total_queries = part.total_queries;
  p.num_requests = part.num_requests;
  p.num_pages = static_cast<int>(args.num_blocks);
  p.kv_heads = config.heads.kv_heads;
  p.group = group();
  p.top_k = config.selection.top_k;
  p.max_blocks = part.max_blocks;
  p.kv_type = element_of(config.kv_type);
  p.scale = args.scale;
  return sm90::launch_attend_prefill(p, stream);
}

cudaError_t Plan::State::attend_dense(const Part& part, const AttendArgs& args, cudaStream_t stream) const {
  sm90::DenseParams p;
  p.q = static_cast<const __nv_bfloat16*>(args.q);
  p.kv_pages = args.kv_pages;
  p.block_table = part.block_table;
  p.seq_lens = part.seq_lens;
  p.cu_seqlens_q = part.cu_seqlens_q;
  p.kv_scales = args.kv_scales;
  p.out = static_cast<__nv_bfloat16*>(args.out);
  p.workspace = workspace + layout.attend;
  p.total_queries = part.total_queries;
  p.num_requests = part.num_requests;
  p.max_queries_per_request = part.max_queries;
  p.max_blocks = part.max_blocks;
  p.num_pages = static_cast<int>(args.num_blocks);
  p.kv_heads = config.heads.kv_heads;
  p.group = group();
  p.kv_type = element_of(config.kv_type);
  p.scale = args.scale;
  p.batch_invariant = config.batch_invariant;
  return sm90::launch_dense(p, stream);
}

AttendArgs Plan::State::args_of_part(const AttendArgs& args, int64_t row) const {
  AttendArgs part = args;
  part.q = offset(args.q, row * query_row());
  part.out = offset(args.out, row * query_row());
  if (args.selected != nullptr) part.selected = args.selected + row * selected_row();
  return part;
}

Plan::Plan(std::unique_ptr<State> state) : state_(std::move(state)) {}
Plan::~Plan() = default;

Status Plan::workspace_bytes(const PlanConfig& config, int64_t* bytes) {
  int sms = 0;
  if (Status s = sm90::check_config(config); !s.ok()) return s;
  if (Status s = device_sms(&sms); !s.ok()) return s;
  return gpu::workspace_bytes(config, sms, bytes);
}

Status Plan::create(const PlanConfig& config, std::unique_ptr<Plan>* plan, void* workspace) {
  if (Status s = sm90::check_config(config); !s.ok()) return s;
  auto state = std::make_unique<State>();
  if (Status s = device_sms(&state->num_sms); !s.ok()) return s;
  state->config = config;
  state->inv_freq.assign(config.inv_freq.begin(), config.inv_freq.end());
  state->config.inv_freq = state->inv_freq;
  state->layout = sm90::plan_layout(config, state->num_sms);
  if (workspace == nullptr) {
    const size_t bytes = state->layout.total;
    if (cudaError_t error = cudaMalloc(&state->owned, bytes); error != cudaSuccess)
      return cuda_status(error, ("allocating a workspace of " + std::to_string(bytes) + " bytes").c_str());
    workspace = state->owned;
  }
  state->workspace = static_cast<char*>(workspace);
  // The decode kernel's counters begin at zero.
  cudaError_t error = cudaMemset(state->workspace + state->layout.decode, 0, state->layout.bytes.decode);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return cuda_status(error, "clearing the workspace");
  plan->reset(new Plan(std::move(state)));
  return {};
}

Status Plan::prepare(const Step& step, cudaStream_t stream) {
  State& s = *state_;
  if (Status status = sm90::check_step(s.config, step); !status.ok()) return status;
  for (const Part* part : {&step.decode, &step.prefill}) {
    const sm90::Regions need = sm90::regions_of(s.config, *part, s.num_sms), &have = s.layout.bytes;
    if (need.index_schedule > have.index_schedule || need.share_list > have.share_list ||
        need.index > have.index || need.decode > have.decode || need.attend > have.attend)
      return {Code::kCapacity, "the step needs more workspace than the plan's maxima foresaw"};
  }
  s.step = step;
  for (const Part* part : {&step.decode, &step.prefill}) {
    if (part->total_queries == 0) continue;
    const cudaError_t error = sm90::prepare_index(s.index_launch(*part, part == &step.prefill), stream);
    if (error != cudaSuccess) return cuda_status(error, "preparing the index");
  }
  if (s.config.rotary_dim == 0 || step.positions == nullptr) return {};
  sm90::RotaryParams rotary = {};
  rotary.positions = step.positions;
  rotary.out = reinterpret_cast<float2*>(s.workspace + s.layout.rotary);
  std::copy(s.inv_freq.begin(), s.inv_freq.end(), rotary.inv_freq);
  rotary.factor = s.config.attention_factor;
  rotary.rows = s.rows();
  rotary.half = s.config.rotary_dim / 2;
  return cuda_status(sm90::launch_rotary(rotary, stream), "preparing the rotary values");
}

Status Plan::index(const IndexArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (s.step.shares_index) return {Code::kInvalid, "the step shares the index: it has candidates"};
  if (Status status = s.check_index(args); !status.ok()) return status;
  int64_t row = 0;
  for (const Part* part : {&s.step.decode, &s.step.prefill}) {
    if (part->total_queries == 0) continue;
    sm90::IndexLaunch l = s.index_launch(*part, part == &s.step.prefill);
    l.q = offset(args.q, row * s.index_row());
    l.k_pages = args.k_pages;
    l.num_pages = args.num_blocks;
    l.selected = args.selected + row * s.selected_row();
    if (const cudaError_t error = sm90::launch_index(l, stream); error != cudaSuccess)
      return cuda_status(error, "launching the index");
    row += part->total_queries;
  }
  return {};
}

Status Plan::attend(const AttendArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (Status status = s.check_attend(args); !status.ok()) return status;
  if (Status status = check_pointer("selected", args.selected); !status.ok()) return status;
  int64_t row = 0;
  for (const Part* part : {&s.step.decode, &s.step.prefill}) {
    if (part->total_queries == 0) continue;
    const AttendArgs of_part = s.args_of_part(args, row);
    const bool by_query = sm90::choose_attend(s.config, *part) == sm90::AttendKernel::kDecode;
    const cudaError_t error =
        by_query ? sm90::launch_attend_decode(s.decode_params(*part, of_part), s.decode_type(), stream)
                 : s.attend_prefill(*part, of_part, stream);
    if (error != cudaSuccess) return cuda_status(error, "launching sparse attention");
    row += part->total_queries;
  }
  return {};
}

Status Plan::dense(const AttendArgs& args, cudaStream_t stream) const {
  const State& s = *state_;
  if (s.rows() == 0) return {};
  if (Status status = s.check_attend(args); !status.ok()) return status;
  if (args.selected != nullptr) return {Code::kInvalid, "selected must be null for dense attention"};
  int64_t row = 0;
  for (const Part* part : {&s.step.decode, &s.step.prefill}) {
    if (part->total_queries == 0) continue;
    const cudaError_t error = s.attend_dense(*part, s.args_of_part(args, row), stream);
    if (error != cudaSuccess) return cuda_status(error, "launching dense attention");
    row += part->total_queries;
  }
  return {};
}

std::string Plan::describe() const {
  return sm90::describe_step(state_->config, state_->step);
}

}  // namespace msa::gpu
