// SPDX-License-Identifier: Apache-2.0
// The shapes that the kernels take: what the launchers check, and what a model is refused for before it is
// loaded. Free of CUDA.
#pragma once

namespace sparrow::ops::cuda {

inline constexpr int kColumnTile = 64;         // hidden sizes and experts' channels are multiples of it
inline constexpr int kMaxHidden = 8192;        // a row of activations stays in a CTA's registers
inline constexpr int kMaxExperts = 256;        // routed ones of a layer
inline constexpr int kMaxExpertsPerToken = 8;  // the router itself takes kMaxTopK
inline constexpr int kMaxVocabulary = 200064;  // a row of logits fits the shared memory of one cluster

}  // namespace sparrow::ops::cuda
