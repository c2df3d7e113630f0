// SPDX-License-Identifier: Apache-2.0
// Stream, Event and Graph: sole owners of CUDA's handles. Any thread, one at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>

namespace sparrow {

// Owns one of CUDA's opaque handles.
template <typename Handle, cudaError_t (*kDestroy)(Handle)>
struct CudaDeleter {
  using pointer = Handle;
  void operator()(Handle handle) const { kDestroy(handle); }
};
template <typename Handle, cudaError_t (*kDestroy)(Handle)>
using CudaHandle = std::unique_ptr<std::remove_pointer_t<Handle>, CudaDeleter<Handle, kDestroy>>;

class Event {
 public:
  enum class Timing { kOff, kOn };  // without timestamps an event is cheaper to record and to wait for

  explicit Event(Timing timing = Timing::kOff);

  void record(cudaStream_t stream);
  // The host waits until the work recorded before is done. An event never recorded is done.
  void wait() const;
  bool is_done() const;
  // Both events need timing and must be done.
  static float milliseconds_between(const Event& begin, const Event& end);

  cudaEvent_t get() const { return event_.get(); }

 private:
  CudaHandle<cudaEvent_t, cudaEventDestroy> event_;
};

class Stream {
 public:
  Stream();  // does not synchronise with the default stream

  // Work launched after this starts only when the event is done.
  void wait_for(const Event& event);
  // The host waits for all work launched so far.
  void synchronize() const;

  cudaStream_t get() const { return stream_.get(); }

 private:
  CudaHandle<cudaStream_t, cudaStreamDestroy> stream_;
};

// Work recorded once and launched many times with one call. Pointers and sizes are those of the recording.
class Graph {
 public:
  Graph() = default;
  // Records what `record` launches on the stream; nothing runs.
  static Graph capture(const Stream& stream, const std::function<void()>& record);
  // The same where other threads launch on the stream, too. No thread does anything else with CUDA meanwhile.
  static Graph capture_of_threads(const Stream& stream, const std::function<void()>& record);

  bool empty() const { return exec_ == nullptr; }
  void launch(cudaStream_t stream) const;

 private:
  static Graph capture(const Stream& stream, cudaStreamCaptureMode mode, const std::function<void()>& record);

  CudaHandle<cudaGraphExec_t, cudaGraphExecDestroy> exec_;
};

}  // namespace sparrow
