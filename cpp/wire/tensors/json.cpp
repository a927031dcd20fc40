// The grammar of RFC 8259.
#include "wire/tensors/json.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "wire/base/utf8.h"

namespace jaxexp::wire {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& text, std::uint32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6), tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12), tail(6), tail(0);
  }
}

}  // namespace

Json::Json(std::string_view text, std::string_view what) : text_(text), what_(what) {
  if (!is_utf8({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}))
    throw Error({}, std::string(what) + " in UTF-8", "other bytes");
}

void Json::object(const std::function<void(const std::string& name)>& member) {
  need('{');
  std::vector<std::string> names;
  if (!take('}')) {
    do {
      names.push_back(string());
      need(':');
      member(names.back());
    } while (take(','));
    need('}');
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error({}, "names that are different", "'" + escaped(shortened(*twice)) + "' twice");
}

void Json::array(const std::function<void()>& element) {
  need('[');
  if (take(']')) return;
  do element();
  while (take(','));
  need(']');
}

std::string Json::string() {
  need('"');
  std::string text;
  for (;;) {
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= ' ')
      ++at_;
    text += text_.substr(start, at_ - start);
    if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < ' ') refuse("the end of a text");
    if (text_[at_++] == '"') return text;
    append_escaped(text);
  }
}

/// What a backslash begins.
void Json::append_escaped(std::string& text) {
  constexpr std::string_view letters = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
  if (at_ == text_.size()) refuse("the end of a text");
  if (const std::size_t found = letters.find(text_[at_]); found != letters.npos) {
    ++at_;
    text += meanings[found];
    return;
  }
  std::uint32_t code = code_unit();
  if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 1) == "\\") {
    ++at_;
    const std::uint32_t low = code_unit();
    if (low < 0xDC00 || low >= 0xE000) refuse("the other half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
  }
  if (code >= 0xD800 && code < 0xE000) refuse("Unicode text, and no half of a surrogate pair");
  append_utf8(text, code);
}

std::uint32_t Json::code_unit() {
  if (text_.substr(at_, 1) != "u") refuse("an escape of JSON");
  ++at_;
  std::uint32_t code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    constexpr std::string_view digits = "0123456789abcdef";
    const std::size_t value = at_ < text_.size() ? digits.find(static_cast<char>(text_[at_] | 0x20)) : digits.npos;
    if (value == digits.npos || text_[at_] < '0') refuse("four hexadecimal digits");
    code = code << 4 | static_cast<std::uint32_t>(value);
  }
  return code;
}

std::uint64_t Json::natural() {
  skip_space();
  const std::size_t start = at_;
  std::uint64_t number = 0;
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  while (at_ < text_.size() && is_digit(text_[at_])) {
    const auto digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (number > (most - digit) / 10 || (at_ > start && number == 0)) {
      at_ = start;
      break;
    }
    number = number * 10 + digit;
    ++at_;
  }
  if (at_ == start || (at_ < text_.size() && (text_[at_] == '.' || (text_[at_] | 0x20) == 'e'))) {
    at_ = start;
    refuse("a natural number below 2**63");
  }
  return number;
}

void Json::skip(int depth) {
  if (depth > deepest) throw Error({}, std::string(what_) + " of at most 64 levels", "one of more");
  skip_space();
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  if (c == '{') return object([&](const std::string&) { skip(depth + 1); });
  if (c == '[') return array([&] { skip(depth + 1); });
  if (c == '"') return static_cast<void>(string());
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text_.substr(at_, word.size()) != word) continue;
    at_ += word.size();
    return;
  }
  skip_number();
}

void Json::skip_number() {
  const std::size_t start = at_;
  const auto fail = [&] {
    at_ = start;
    refuse("a value");
  };
  if (text_.substr(at_, 1) == "-") ++at_;
  const bool is_zero = text_.substr(at_, 1) == "0";
  const std::size_t digits = at_;
  if (!skip_digits() || (is_zero && at_ > digits + 1)) fail();
  if (text_.substr(at_, 1) == ".") {
    ++at_;
    if (!skip_digits()) fail();
  }
  if (at_ < text_.size() && (text_[at_] | 0x20) == 'e') {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    if (!skip_digits()) fail();
  }
}

bool Json::skip_digits() {
  const std::size_t start = at_;
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
  return at_ > start;
}

void Json::end() {
  skip_space();
  if (at_ < text_.size()) refuse("its end");
}

void Json::skip_space() { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }

bool Json::take(char c) {
  skip_space();
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

void Json::need(char c) {
  if (!take(c)) refuse(std::string("'") + c + "'");
}

std::string Json::next() const {
  if (at_ == text_.size()) return "its end";
  return "'" + escaped(text_.substr(at_, 20)) + "' at byte " + std::to_string(at_);
}

void Json::refuse(const std::string& expected) const {
  throw Error({}, std::string(what_) + " in JSON, with " + expected + " here", next());
}

}  // namespace jaxexp::wire
