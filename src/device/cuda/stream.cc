// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream.h"

#include "device/cuda/check.h"

namespace sparrow {

Event::Event(Timing timing) {
  cudaEvent_t event = nullptr;
  SPARROW_CUDA(
      cudaEventCreateWithFlags(&event, timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming));
  event_.reset(event);
}

void Event::record(cudaStream_t stream) {
  SPARROW_CUDA(cudaEventRecord(event_.get(), stream));
}

void Event::wait() const {
  SPARROW_CUDA(cudaEventSynchronize(event_.get()));
}

bool Event::is_done() const {
  const cudaError_t state = cudaEventQuery(event_.get());
  if (state == cudaErrorNotReady) return false;
  SPARROW_CUDA(state);
  return true;
}

float Event::milliseconds_between(const Event& begin, const Event& end) {
  float ms = 0;
  SPARROW_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return ms;
}

Stream::Stream() {
  cudaStream_t stream = nullptr;
  SPARROW_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_.reset(stream);
}

void Stream::wait_for(const Event& event) {
  SPARROW_CUDA(cudaStreamWaitEvent(stream_.get(), event.get(), 0));
}

void Stream::synchronize() const {
  SPARROW_CUDA(cudaStreamSynchronize(stream_.get()));
}

Graph Graph::capture(const Stream& stream, const std::function<void()>& record) {
  // Thread-local: another thread's allocation or copy during the recording is its own business.
  return capture(stream, cudaStreamCaptureModeThreadLocal, record);
}

Graph Graph::capture_of_threads(const Stream& stream, const std::function<void()>& record) {
  return capture(stream, cudaStreamCaptureModeRelaxed, record);
}

Graph Graph::capture(const Stream& stream, cudaStreamCaptureMode mode, const std::function<void()>& record) {
  SPARROW_CUDA(cudaStreamBeginCapture(stream.get(), mode));
  record();
  cudaGraph_t recorded = nullptr;
  SPARROW_CUDA(cudaStreamEndCapture(stream.get(), &recorded));
  const CudaHandle<cudaGraph_t, cudaGraphDestroy> owner(recorded);
  cudaGraphExec_t exec = nullptr;
  SPARROW_CUDA(cudaGraphInstantiate(&exec, recorded, 0));
  Graph graph;
  graph.exec_.reset(exec);
  return graph;
}

void Graph::launch(cudaStream_t stream) const {
  SPARROW_CUDA(cudaGraphLaunch(exec_.get(), stream));
}

}  // namespace sparrow
