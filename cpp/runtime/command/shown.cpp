// A table of all results, then the numbers of small ones. Escaping the lines is the caller's.
#include "runtime/command/shown.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string_view>

#include "runtime/command/small_float.h"

namespace jaxexp::command {
namespace {

/// What is told about the numbers of an array: nothing where there is one number, or they are complex.
struct Range {
  std::string least, most, mean;  // of the finite numbers
  std::string not_finite;         // how many others there are; empty for none
};

struct NumberTexts {
  Range range;
  std::vector<std::string> words;  // a text for each number, all of one width; none if there are more than `most_words`
};

// Floating-point numbers have the fewest digits that tell them from their neighbours of the same dtype.

using Printed = std::string (*)(double);

/// With at most so many digits; 0 for as many as are needed.
template <class T, int Digits = 0>
std::string printed(double number) {
  if (std::isnan(number)) return "nan";
  char text[32];
  const auto value = static_cast<T>(number);
  char* const end =
      Digits == 0 ? std::to_chars(std::begin(text), std::end(text), value).ptr
                  : std::to_chars(std::begin(text), std::end(text), value, std::chars_format::general, Digits).ptr;
  return {text, end};
}

template <class T>
std::vector<T> read(const std::byte* data, std::size_t count) {
  std::vector<T> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), data, count * sizeof(T));
  return numbers;
}

constexpr Printed six_digits = printed<double, 6>;

Range range_of(const std::vector<double>& numbers) {
  std::size_t finite = 0;
  double sum = 0, least = std::numeric_limits<double>::infinity(), most = -least;
  for (const double number : numbers)
    if (std::isfinite(number))
      ++finite, sum += number, least = std::min(least, number + 0.0), most = std::max(most, number + 0.0);  // not -0.0
  Range range;
  if (finite < numbers.size()) range.not_finite = with_commas(numbers.size() - finite);
  if (finite > 0)
    range.least = six_digits(least), range.most = six_digits(most),
    range.mean = six_digits(sum / static_cast<double>(finite));
  return range;
}

void align(std::vector<std::string>& words) {
  std::size_t width = 0;
  for (const std::string& word : words) width = std::max(width, word.size());
  for (std::string& word : words) word.insert(0, width - word.size(), ' ');
}

template <class T>
NumberTexts whole(const std::byte* data, std::size_t count, std::size_t most_words, std::string (*text)(T)) {
  const auto numbers = read<T>(data, count);
  NumberTexts found;
  if (count > 1) {
    const auto [least, most] = std::ranges::minmax(numbers);
    double sum = 0;
    for (const T number : numbers) sum += static_cast<double>(number);
    found.range = {text(least), text(most), six_digits(sum / static_cast<double>(count)), {}};
  }
  if (count <= most_words) std::ranges::transform(numbers, std::back_inserter(found.words), text);
  return found;
}

template <class T>
NumberTexts whole(const std::byte* data, std::size_t count, std::size_t most_words) {
  return whole<T>(data, count, most_words, [](T number) { return std::to_string(number); });
}

NumberTexts reals(Printed text, const std::vector<double>& numbers, std::size_t most_words) {
  NumberTexts found;
  if (numbers.size() > 1) found.range = range_of(numbers);
  if (numbers.size() <= most_words) std::ranges::transform(numbers, std::back_inserter(found.words), text);
  return found;
}

NumberTexts complexes(Printed text, const std::vector<double>& parts, std::size_t most_words) {
  NumberTexts found;
  if (parts.size() > 2 * most_words) return found;
  for (std::size_t i = 0; i < parts.size(); i += 2) {
    const std::string imaginary = text(parts[i + 1]);
    found.words.push_back(text(parts[i]) + (imaginary.starts_with('-') ? "" : "+") + imaginary + 'j');
  }
  return found;
}

NumberTexts not_aligned(std::string_view dtype, const std::byte* data, std::size_t count, std::size_t most_words) {
  if (dtype == "bool")
    return whole<std::uint8_t>(data, count, most_words, [](auto b) -> std::string { return b ? "True" : "False"; });
  if (dtype == "int8") return whole<std::int8_t>(data, count, most_words);
  if (dtype == "int16") return whole<std::int16_t>(data, count, most_words);
  if (dtype == "int32") return whole<std::int32_t>(data, count, most_words);
  if (dtype == "int64") return whole<std::int64_t>(data, count, most_words);
  if (dtype == "uint8") return whole<std::uint8_t>(data, count, most_words);
  if (dtype == "uint16") return whole<std::uint16_t>(data, count, most_words);
  if (dtype == "uint32") return whole<std::uint32_t>(data, count, most_words);
  if (dtype == "uint64") return whole<std::uint64_t>(data, count, most_words);
  const auto floats = [&]<class T>(T, std::size_t parts = 1) {
    const auto numbers = read<T>(data, parts * count);
    return std::vector<double>(numbers.begin(), numbers.end());
  };
  const auto halves = [&] {
    std::vector<double> numbers;
    for (const auto code : read<std::uint16_t>(data, count)) numbers.push_back(small_float(dtype)->decoded(code));
    return numbers;
  };
  if (dtype == "float16") return reals(printed<float, 5>, halves(), most_words);
  if (dtype == "bfloat16") return reals(printed<float, 4>, halves(), most_words);
  if (dtype == "float32") return reals(printed<float>, floats(float()), most_words);
  if (dtype == "float64") return reals(printed<double>, floats(double()), most_words);
  if (dtype == "complex64") return complexes(printed<float>, floats(float(), 2), most_words);
  if (dtype == "complex128") return complexes(printed<double>, floats(double(), 2), most_words);
  return {};
}

/// `data` has the `count` numbers of an array. Small floats and integers, such as float8_e5m2 and int4, have no texts.
NumberTexts number_texts(std::string_view dtype, const std::byte* data, std::size_t count, std::size_t most_words) {
  NumberTexts found = not_aligned(dtype, data, count, most_words);
  align(found.words);
  return found;
}

/// The lines of an array of these words: one for each row of the last dimension.
/// Brackets open before the first number of each dimension, and close behind the last one.
std::vector<std::string> laid_out(const std::vector<std::string>& words, const std::vector<std::int64_t>& shape) {
  const std::size_t in_line = shape.empty() ? 1 : static_cast<std::size_t>(shape.back());
  std::vector<std::string> lines;
  for (std::size_t first = 0; first < words.size(); first += in_line) {
    const std::size_t end = first + in_line;
    std::size_t opened = 0, closed = 0, size = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      size *= static_cast<std::size_t>(shape[d]);
      opened += first % size == 0;
      closed += end % size == 0;
    }
    std::string line = std::string(shape.size() - opened, ' ') + std::string(opened, '[');
    for (std::size_t i = first; i < end; ++i) line += (i > first ? " " : "") + words[i];
    lines.push_back(line + std::string(closed, ']'));
  }
  return lines;
}

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
