// JSON as it is in files of tensors, read from the front to the back: values are asked for, and what else is there is
// an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "wire/base/error.h"

namespace jaxexp::wire {

/// Every method throws Error where something else comes next.
class Json {
 public:
  /// `text` is checked to be UTF-8, and `what` is what messages call it.
  Json(std::string_view text, std::string_view what);

  /// Calls `member` with each name, behind which a value has to be read. Names are different.
  void object(const std::function<void(const std::string& name)>& member);
  /// Calls `element` in front of each element, which has to be read.
  void array(const std::function<void()>& element);
  std::string string();
  /// A number below 2**63, without a fraction.
  std::uint64_t natural();
  /// Reads any value.
  void skip() { skip(0); }
  /// Nothing may come any more.
  void end();

  /// As the beginning of what comes next is shown in messages.
  std::string next() const;

 private:
  static constexpr int deepest = 64;

  void skip(int depth);
  void skip_number();
  void append_escaped(std::string& text);
  std::uint32_t code_unit();
  void skip_space();
  bool take(char c);
  void need(char c);
  bool skip_digits();
  [[noreturn]] void refuse(const std::string& expected) const;

  std::string_view text_;
  std::string_view what_;
  std::size_t at_ = 0;
};

}  // namespace jaxexp::wire
