// SPDX-License-Identifier: Apache-2.0
// TextBuilder: builds up a text and knows of each byte whether the template wrote it. Whatever is appended
// brings its origin along, by its address (see Heap::origins_of); what the heap does not know counts as data.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/value/heap.h"

namespace sparrow::jinja {

class TextBuilder {
 public:
  explicit TextBuilder(const Heap& heap) : heap_(heap) {}

  TextBuilder& operator+=(std::string_view text) {
    const Heap::Origins from = heap_.origins_of(text);
    if (from.each != nullptr) {
      origins_.append(from.each, text.size());
    } else {
      origins_.append(text.size(), from.all);
    }
    text_ += text;
    return *this;
  }
  TextBuilder& operator+=(char c) {
    append(std::string_view(&c, 1), kData);
    return *this;
  }
  void append(std::string_view text, Origin origin) {
    text_ += text;
    origins_.append(text.size(), origin);
  }

  size_t size() const { return text_.size(); }
  std::string_view text() const { return text_; }
  std::string_view origins() const { return origins_; }  // one for each byte
  std::string take_text() { return std::move(text_); }

 private:
  const Heap& heap_;
  std::string text_, origins_;
};

}  // namespace sparrow::jinja
