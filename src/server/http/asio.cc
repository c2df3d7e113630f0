// SPDX-License-Identifier: Apache-2.0
// The one translation unit that compiles Asio's own code.
#include <boost/asio/impl/src.hpp>
