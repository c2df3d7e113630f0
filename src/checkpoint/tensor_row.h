// SPDX-License-Identifier: Apache-2.0
// TensorRow: all that is known of one tensor of MiniMax-M3. Whoever counts, binds, cuts, makes or places
// tensors reads these fields; nobody but the table looks at a name.
#pragma once

#include <cstdint>

#include "base/matrix_format.h"
#include "checkpoint/safetensors.h"

namespace sparrow {

// What a tensor is to the model.
enum class TensorRole : uint8_t {
  kEmbed,
  kInputNorm,
  kPostAttentionNorm,
  kQ,
  kK,
  kV,
  kO,
  kQNorm,
  kKNorm,
  kIndexQ,
  kIndexK,
  kIndexQNorm,
  kIndexKNorm,
  kRouter,
  kRouterBias,
  // Of a routed expert, or of the layer's own feed-forward: the dense one, or the shared expert.
  kGate,
  kUp,
  kDown,
  kFinalNorm,
  kHead,

  // From here on: the vision tower and what follows it.
  kVisionPatch,
  kVisionPreNorm,
  kVisionNorm1,
  kVisionQ,
  kVisionK,
  kVisionV,
  kVisionO,
  kVisionNorm2,
  kVisionUp,
  kVisionDown,
  kProjectorUp,
  kProjectorDown,
  kMergerUp,
  kMergerDown,
};

// A role's tensors.
enum class TensorPiece : uint8_t { kValues, kScales, kBias };

// How ranks share a tensor: those of a group, or all of them where it is an expert's (model/sharding).
enum class TensorCut : uint8_t {
  kWhole,    // every rank has all of it
  kRows,     // equal parts
  kColumns,  // equal parts
  kKvHeads,  // rows of whole KV heads, which ranks share where there are more ranks than heads
};

// Which line of the ledger counts a tensor.
enum class LedgerPart : uint8_t {
  kVision,
  kRoutedExperts,
  kSharedExperts,
  kEmbeddings,
  kRouterNorms,
  kAttention,
  kDense,
};
inline constexpr size_t kNumLedgerParts = 7;

// What lies in GPU memory, in this order; one of each for every layer but for embed, final norm and head.
enum class DeviceTensor : uint8_t {
  kNone,  // not on the GPU
  kEmbed,
  kInputNorm,
  kPostAttentionNorm,
  kQNorm,
  kKNorm,
  kIndexQNorm,
  kIndexKNorm,
  kQkv,  // q, k, v, index q and index k below each other
  kO,
  kRouter,
  kRouterBias,
  kGateUp,  // expert by expert, the layer's own feed-forward last
  kDown,    // as gate and up
  // The shared expert, where routed ones are whole and it is not: its channels are others then.
  kSharedGateUp,
  kSharedDown,
  kFinalNorm,
  kHead,
};
inline constexpr size_t kNumDeviceTensors = 18;

// How a tensor's rows (or columns, where it is cut by those) are laid down there. What is filled up is zero.
enum class DevicePacking : uint8_t {
  kAsIs,
  kHeadGroups,   // each KV head's query heads, filled up to a number that the kernels take
  kTiles,        // filled up to whole tiles
  kFirstEights,  // as tiles, with room for another tensor's eight rows after each eight of its own
  kSecondEights,
};

struct DevicePlace {
  DeviceTensor tensor = DeviceTensor::kNone;
  DevicePacking packing = DevicePacking::kAsIs;
  MatrixFormat format = MatrixFormat::kBF16;
};

// How random numbers of a tensor spread.
enum class RandomSpread : uint8_t {
  kUnit,      // outputs of order 1
  kResidual,  // what is added to the residual stream, twice in each layer
  kEmbedding,
  kHead,
  kNorm,  // of the text model: scales by 1 + weight
  kHeadNorm,
  kVisionNorm,  // scales by the weight
  kBias,
  kRouterBias,
};

struct TensorRow {
  TensorRole role = TensorRole::kEmbed;
  TensorPiece piece = TensorPiece::kValues;
  int layer = -1, expert = -1;                // -1: belongs to none
  TensorSpec spec;                            // as files have it; F32 and BF16 stand for each other
  MatrixFormat format = MatrixFormat::kBF16;  // of the matrix, scales included; kBF16 stands for F32, too
  TensorCut cut = TensorCut::kWhole;
  LedgerPart part = LedgerPart::kVision;
  DevicePlace device;
  RandomSpread spread = RandomSpread::kUnit;

  // Of the matrix, in the row of its values; a file may have two of its columns in one element.
  int64_t columns() const { return spec.shape.back() * values_per_element(format); }
};

}  // namespace sparrow
