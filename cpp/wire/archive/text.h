// Texts that many members of an archive have in common.
#pragma once

#include <memory>
#include <string>
#include <utility>

namespace jaxexp::wire {

/// A text that does not change, in memory that its copies share: an index says a text once for all members that have
/// it.
class Text {
 public:
  Text() = default;
  Text(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  Text(const char* text) : Text(std::string(text)) {}

  const std::string& str() const {
    static const std::string empty;
    return text_ ? *text_ : empty;
  }
  operator const std::string&() const { return str(); }
  std::size_t size() const { return str().size(); }

  friend bool operator==(const Text& a, const Text& b) { return a.text_ == b.text_ || a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace jaxexp::wire
