// The rules are those of numpy.array2string with its defaults: the fewest digits that tell a number from its
// neighbours, at most eight behind the point, and exponents where the numbers of an array differ too much in size.
#include "runtime/command/number_texts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <span>

namespace jaxexp::command {
namespace {

constexpr int most_decimals = 8;
constexpr std::size_t line_width = 96;

std::string printed(const char* format, int digits, double number) {
  char text[512];
  return {text, static_cast<std::size_t>(std::snprintf(text, sizeof text, format, digits, number))};
}

/// What is in front of the point of a number in decimal notation, what is behind it, and its exponent.
struct Decimal {
  std::string whole, fraction, exponent;

  explicit Decimal(const std::string& text) {
    const std::size_t point = std::min(text.find('.'), text.size()), e = std::min(text.find('e'), text.size());
    whole = text.substr(0, std::min(point, e));
    if (point < e) fraction = text.substr(point + 1, e - point - 1);
    fraction.erase(fraction.find_last_not_of('0') + 1);
    if (e < text.size()) exponent = text.substr(e + 2);
    if (e < text.size() && text[e + 1] == '-') exponent.insert(0, "-");
  }
};

/// A type of floating-point numbers, whose values are doubles here.
struct Floats {
  /// Whether a decimal number, read as a double, is nearer to the value than to its neighbours.
  std::function<bool(double, double)> is_same;
  double exponents_from;  // numbers of this size on are printed with exponents
};

bool is_same_half(double parsed, double value) {
  constexpr int least_exponent = -14, bits = 10;
  const int exponent = value == 0 ? least_exponent : std::max(std::ilogb(value), least_exponent);
  return std::abs(parsed - value) < std::ldexp(0.5, exponent - bits);
}

const Floats half{is_same_half, 1e3};
const Floats single{[](double parsed, double value) { return static_cast<float>(parsed) == value; }, 1e6};
const Floats twice{[](double parsed, double value) { return parsed == value; }, 1e8};

/// Prints the numbers of an array, after it has seen all of them.
class FloatFormat {
 public:
  FloatFormat(const Floats& floats, const std::vector<double>& numbers, bool has_plus)
      : floats_(floats), has_plus_(has_plus) {
    double most = 0, least = std::numeric_limits<double>::infinity();
    for (const double number : numbers)
      if (std::isfinite(number) && number != 0)
        most = std::max(most, std::abs(number)), least = std::min(least, std::abs(number));
    has_exponent_ = most > 0 && (most >= floats.exponents_from || least < 1e-4 || most / least > 1e3);
    for (const double number : numbers) {
      if (!std::isfinite(number)) continue;
      const Decimal decimal = this->decimal(number);
      left_ = std::max(left_, decimal.whole.size());
      right_ = std::max(right_, decimal.fraction.size());
      exponent_ = std::max(exponent_, decimal.exponent.size() - decimal.exponent.starts_with('-'));
    }
    const std::size_t right = width() - left_;
    for (const double number : numbers)
      if (!std::isfinite(number))
        left_ = std::max(left_, text_of_other(number).size() - std::min(right, std::size_t{3}));
  }

  std::string operator()(double number) const {
    if (!std::isfinite(number)) {
      const std::string text = text_of_other(number);
      return std::string(width() - std::min(width(), text.size()), ' ') + text;
    }
    const Decimal decimal = this->decimal(number);
    std::string text = std::string(left_ - decimal.whole.size(), ' ') + decimal.whole + '.' + decimal.fraction;
    text.append(right_ - decimal.fraction.size(), has_exponent_ ? '0' : ' ');
    if (!has_exponent_) return text;
    const bool is_negative = decimal.exponent.starts_with('-');
    const std::string digits = decimal.exponent.substr(is_negative);
    return text + 'e' + (is_negative ? '-' : '+') + std::string(exponent_ - digits.size(), '0') + digits;
  }

 private:
  std::size_t width() const { return left_ + 1 + right_ + (has_exponent_ ? exponent_ + 2 : 0); }

  std::string text_of_other(double number) const {
    const std::string text = std::isnan(number) ? "nan" : number < 0 ? "-inf" : "inf";
    return has_plus_ && !text.starts_with('-') ? '+' + text : text;
  }

  Decimal decimal(double number) const {
    std::string text;
    for (int digits = 0; digits < std::numeric_limits<double>::max_digits10; ++digits) {
      text = printed("%.*e", digits, number);
      if (floats_.is_same(std::strtod(text.c_str(), nullptr), number)) break;
    }
    const Decimal shortest(text);
    const int exponent = std::atoi(shortest.exponent.c_str()), decimals = static_cast<int>(shortest.fraction.size());
    if (has_exponent_) {
      if (decimals > most_decimals) text = printed("%.*e", most_decimals, number);
    } else {
      // Rounded once: the shortest text is, and the number itself where that has too many decimals.
      const int needed = decimals - exponent;
      text = needed > most_decimals ? printed("%.*f", most_decimals, number)
                                    : printed("%.*f", std::max(needed, 0), std::strtod(text.c_str(), nullptr));
    }
    Decimal found(text);
    if (has_plus_ && !found.whole.starts_with('-')) found.whole.insert(0, "+");
    return found;
  }

  const Floats& floats_;
  bool has_plus_, has_exponent_;
  std::size_t left_ = 0, right_ = 0, exponent_ = 0;  // the widths of the parts
};

template <class T>
std::vector<T> read(const std::byte* data, std::size_t count) {
  std::vector<T> numbers(count);
  if (count > 0) std::memcpy(numbers.data(), data, count * sizeof(T));
  return numbers;
}

template <class T>
std::vector<double> doubles(const std::byte* data, std::size_t count) {
  const auto numbers = read<T>(data, count);
  return {numbers.begin(), numbers.end()};
}

double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double number = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) number = fraction ? std::nan("") : std::numeric_limits<double>::infinity();
  return bits >> 15 ? -number : number;
}

double from_bfloat16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float number;
  std::memcpy(&number, &wide, sizeof number);
  return number;
}

std::vector<double> doubles(const std::byte* data, std::size_t count, double (*decode)(std::uint16_t)) {
  std::vector<double> numbers;
  for (const std::uint16_t bits : read<std::uint16_t>(data, count)) numbers.push_back(decode(bits));
  return numbers;
}

std::string six_digits(double number) { return printed("%.*g", 6, number); }

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

/// Whole numbers; bools are those of one bit.
template <class T>
NumberTexts whole(const std::byte* data, std::size_t count, std::size_t most_words,
                  const std::function<std::string(T)>& text) {
  const auto numbers = read<T>(data, count);
  NumberTexts found;
  if (count > 1) {
    const auto [least, most] = std::ranges::minmax(numbers);
    double sum = 0;
    for (const T number : numbers) sum += static_cast<double>(number);
    found.range = {text(least), text(most), six_digits(sum / static_cast<double>(count)), {}};
  }
  if (count <= most_words)
    for (const T number : numbers) found.words.push_back(text(number));
  return found;
}

template <class T>
NumberTexts whole(const std::byte* data, std::size_t count, std::size_t most_words) {
  auto found = whole<T>(data, count, most_words, [](T number) { return std::to_string(number); });
  align(found.words);
  return found;
}

NumberTexts bools(const std::byte* data, std::size_t count, std::size_t rank, std::size_t most_words) {
  auto found = whole<std::uint8_t>(data, count, most_words, [](std::uint8_t b) { return b ? "True" : "False"; });
  if (rank > 0)
    for (std::string& word : found.words) word.insert(0, word == "True" ? " " : "");
  return found;
}

NumberTexts reals(const Floats& floats, const std::vector<double>& numbers, std::size_t most_words) {
  NumberTexts found;
  if (numbers.size() > 1) found.range = range_of(numbers);
  if (numbers.size() > most_words) return found;
  const FloatFormat format(floats, numbers, /*has_plus=*/false);
  for (const double number : numbers) found.words.push_back(format(number));
  return found;
}

NumberTexts complexes(const Floats& floats, const std::vector<double>& parts, std::size_t most_words) {
  NumberTexts found;
  if (parts.size() > 2 * most_words) return found;
  std::vector<double> real, imaginary;
  for (std::size_t i = 0; i < parts.size(); ++i) (i % 2 ? imaginary : real).push_back(parts[i]);
  const FloatFormat format_real(floats, real, false), format_imaginary(floats, imaginary, true);
  for (std::size_t i = 0; i < real.size(); ++i) {
    std::string text = format_imaginary(imaginary[i]);
    text.insert(text.find_last_not_of(' ') + 1, "j");
    found.words.push_back(format_real(real[i]) + text);
  }
  return found;
}

/// Lines in brackets that stand below each other; those of the last dimension are broken where they are too long.
class Layout {
 public:
  Layout(const std::vector<std::string>& words, const std::vector<std::int64_t>& shape)
      : words_(words), shape_(shape) {}

  std::string text(std::size_t axis, const std::string& indent, std::size_t width) {
    if (axis == shape_.size()) return words_[next_++];
    const auto count = static_cast<std::size_t>(shape_[axis]);
    const std::size_t left = shape_.size() - axis;
    std::string done, line = indent;
    for (std::size_t i = 0; i < count; ++i) {
      if (left > 1) {
        done += indent + text(axis + 1, indent + ' ', width - 1);
        if (i + 1 < count) done.append(left - 1, '\n');
        continue;
      }
      const std::string word = text(axis + 1, indent, width);
      if (line.size() + word.size() > width - 1 && line.size() > indent.size()) {
        line.erase(line.find_last_not_of(' ') + 1);
        done += line + '\n';
        line = indent;
      }
      line += word;
      if (i + 1 < count) line += ' ';
    }
    if (left == 1) done += line;
    return '[' + done.substr(indent.size()) + ']';
  }

 private:
  const std::vector<std::string>& words_;
  const std::vector<std::int64_t>& shape_;
  std::size_t next_ = 0;
};

}  // namespace

std::string with_commas(std::size_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

NumberTexts number_texts(std::string_view dtype, const std::byte* data, std::size_t count, std::size_t rank,
                         std::size_t most_words) {
  if (dtype == "bool") return bools(data, count, rank, most_words);
  if (dtype == "int8") return whole<std::int8_t>(data, count, most_words);
  if (dtype == "int16") return whole<std::int16_t>(data, count, most_words);
  if (dtype == "int32") return whole<std::int32_t>(data, count, most_words);
  if (dtype == "int64") return whole<std::int64_t>(data, count, most_words);
  if (dtype == "uint8") return whole<std::uint8_t>(data, count, most_words);
  if (dtype == "uint16") return whole<std::uint16_t>(data, count, most_words);
  if (dtype == "uint32") return whole<std::uint32_t>(data, count, most_words);
  if (dtype == "uint64") return whole<std::uint64_t>(data, count, most_words);
  if (dtype == "float16") return reals(half, doubles(data, count, from_half), most_words);
  if (dtype == "float32") return reals(single, doubles<float>(data, count), most_words);
  if (dtype == "float64") return reals(twice, doubles<double>(data, count), most_words);
  if (dtype == "complex64") return complexes(single, doubles<float>(data, 2 * count), most_words);
  if (dtype == "complex128") return complexes(twice, doubles<double>(data, 2 * count), most_words);
  if (dtype != "bfloat16") return {};
  const auto numbers = doubles(data, count, from_bfloat16);
  NumberTexts found;  // NumPy does not align the numbers of a dtype that is not its own
  if (count > 1) found.range = range_of(numbers);
  if (count <= most_words) std::ranges::transform(numbers, std::back_inserter(found.words), six_digits);
  return found;
}

std::vector<std::string> laid_out(const std::vector<std::string>& words, const std::vector<std::int64_t>& shape) {
  const std::string text = Layout(words, shape).text(0, " ", line_width);
  std::vector<std::string> lines(1);
  for (const char c : text) {
    if (c == '\n')
      lines.emplace_back();
    else
      lines.back() += c;
  }
  return lines;
}

}  // namespace jaxexp::command
