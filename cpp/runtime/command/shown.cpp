// A table of all results, then the numbers of small ones. Escaping the lines is the caller's.
#include "runtime/command/shown.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/command/number_texts.h"

namespace jaxexp::command {
namespace {

constexpr std::size_t small = 32;  // results of at most so many numbers are shown

using Row = std::array<std::string, 6>;

NumberTexts texts_of(const Array& array) {
  std::vector<std::byte> numbers(array.size_bytes());
  array.copy_to(numbers.data());
  return number_texts(array.dtype(), numbers.data(), array.size(), small);
}

std::string type_of(std::string_view dtype, const std::vector<std::int64_t>& shape) {
  std::string text = std::string(dtype) + '[';
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? "," : "") + std::to_string(shape[d]);
  return text + ']';
}

/// Columns as wide as their widest text; what is empty in all rows has none. The first two columns are texts.
std::vector<std::string> table(const std::vector<Row>& rows) {
  const auto width = [](const std::string& text) {  // in characters of UTF-8
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<std::string> lines(rows.size(), " ");
  for (std::size_t column = 0; column < Row().size(); ++column) {
    std::size_t widest = 0;
    bool is_empty = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      widest = std::max(widest, width(rows[i][column]));
      if (i > 0 && !rows[i][column].empty()) is_empty = false;
    }
    if (is_empty) continue;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string &cell = rows[i][column], gap(widest - width(cell), ' ');
      lines[i] += (column == 0 ? " " : "  ") + (column < 2 ? cell + gap : gap + cell);
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

}  // namespace

std::vector<std::string> shown(const std::string& title, const std::vector<Value>& values,
                               const std::vector<Array>& results) {
  std::vector<Row> rows{{"result", "type", "min", "max", "mean", "not finite"}};
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string path = escaped(values[i].path);
    const bool has_numbers = values[i].dtype != "float0";
    const NumberTexts texts = has_numbers ? texts_of(results[i]) : NumberTexts();
    const Range& range = texts.range;
    rows.push_back({path, type_of(has_numbers ? results[i].dtype() : "float0", results[i].shape()), range.least,
                    range.most, range.mean, range.not_finite});
    if (texts.words.empty()) continue;
    numbers.emplace_back();
    numbers.push_back(path);
    for (const std::string& line : laid_out(texts.words, results[i].shape())) numbers.push_back("  " + line);
  }
  std::vector<std::string> lines{title};
  std::ranges::move(table(rows), std::back_inserter(lines));
  std::ranges::move(numbers, std::back_inserter(lines));
  return lines;
}

}  // namespace jaxexp::command
