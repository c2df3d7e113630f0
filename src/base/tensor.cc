// SPDX-License-Identifier: Apache-2.0
#include "base/tensor.h"

namespace sparrow {

std::string shape_string(const Tensor& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) text += strf("{}{}", d == 0 ? "" : ", ", tensor.shape[d]);
  return text + "]";
}

}  // namespace sparrow
