// The rule of Python, number by number; tests/runtime/test_cases_without_python.py compares the two.
#include "runtime/cases/compared.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <utility>

#include "runtime/cases/decoded.h"
#include "runtime/cases/words.h"

namespace jaxexp::runtime {
namespace {

/// Without a tolerance, in units of the last place of a result's largest number; for narrow floats a part of that
/// number, or one unit.
constexpr double most_ulps = 64, most = 1.0 / 64;

/// A distance, whether it is allowed, and what is beyond it.
struct Judged {
  double distance = 0, allowed = 0;
  bool is_pattern = false;  // NaN or infinite on one side only
  bool is_wrong = false;
};

/// Finds the worst number: where patterns differ, else what is furthest beyond the tolerance, else what is furthest
/// from the recorded one; the first of these.
class Worst {
 public:
  explicit Worst(bool is_relative) : is_relative_(is_relative) {}

  void add(std::size_t index, const Judged& judged) {
    constexpr double tiny = std::numeric_limits<double>::min();
    const double beyond = is_relative_ ? judged.distance / std::max(judged.allowed, tiny) : judged.distance;
    const Rank rank = judged.is_pattern ? Rank{2, 0} : judged.is_wrong ? Rank{1, beyond} : Rank{0, judged.distance};
    if (index > 0 && !(rank > rank_)) return;
    rank_ = rank, index_ = index, allowed_ = judged.allowed;
  }

  std::size_t index() const { return index_; }
  double allowed() const { return allowed_; }

 private:
  using Rank = std::pair<int, double>;

  bool is_relative_;
  Rank rank_{-1, 0};
  std::size_t index_ = 0;
  double allowed_ = 0;
};

void add(Compared& compared, Worst& worst, std::size_t index, const Judged& judged) {
  compared.differing += judged.is_wrong;
  compared.max_absolute = std::max(compared.max_absolute, judged.distance);
  worst.add(index, judged);
}

void finish(Compared& compared, const Worst& worst) {
  compared.verdict = compared.differing > 0 ? Verdict::differs : Verdict::close;
  compared.worst = worst.index();
  compared.allowed = worst.allowed();
}

std::span<const std::uint8_t> bytes_of(const Array& array) {
  return {static_cast<const std::uint8_t*>(array.data()), array.size_bytes()};
}

/// A tolerance may allow them to differ if it was given.
void compare_integers(Compared& compared, const Array& recorded, const Array& found, const Case::Tolerance& tolerance) {
  const auto before = integers(recorded.dtype(), bytes_of(recorded)), after = integers(found.dtype(), bytes_of(found));
  Worst worst(/*is_relative=*/false);
  compared.size = before.size();
  for (std::size_t i = 0; i < before.size(); ++i) {
    Judged judged;
    judged.allowed = tolerance.absolute + tolerance.relative * std::abs(before[i].real());
    if (before[i] != after[i]) {
      ++compared.unequal;
      judged.distance = before[i].distance(after[i]);
      judged.is_wrong = judged.distance > judged.allowed;
    }
    add(compared, worst, i, judged);
  }
  finish(compared, worst);
  compared.recorded = before[compared.worst].str(recorded.dtype());
  compared.found = after[compared.worst].str(recorded.dtype());
}

/// The floats of an array, of which a complex number has two. Those that are NaN in another array, too, count as equal,
/// and as zeros.
class Floats {
 public:
  explicit Floats(const Array& array)
      : dtype_(array.dtype()), parts_(is_complex(dtype_) ? 2 : 1), numbers_(reals(dtype_, bytes_of(array))) {}

  std::size_t parts() const { return parts_; }
  std::size_t size() const { return numbers_.size() / parts_; }
  double part(std::size_t i, std::size_t which, const Floats& other) const {
    return are_nan(i, which, other) ? 0 : at(i, which);
  }
  bool are_nan(std::size_t i, std::size_t which, const Floats& other) const {
    return std::isnan(at(i, which)) && std::isnan(other.at(i, which));
  }
  bool is_nan(std::size_t i, const Floats& other) const {
    return any(i, other, [](double x) { return std::isnan(x); });
  }
  bool is_infinite(std::size_t i, const Floats& other) const {
    return any(i, other, [](double x) { return std::isinf(x); });
  }
  bool is_same(std::size_t i, const Floats& other) const {
    return part(i, 0, other) == other.part(i, 0, *this) &&
           (parts_ == 1 || part(i, 1, other) == other.part(i, 1, *this));
  }
  /// Of a finite number. That of a complex one may overflow.
  double magnitude(std::size_t i, const Floats& other) const {
    constexpr double largest = std::numeric_limits<double>::max();
    const double real = part(i, 0, other);
    return parts_ == 1 ? std::abs(real) : std::min(std::hypot(real, part(i, 1, other)), largest);
  }
  double distance(std::size_t i, const Floats& other) const {
    const double real = other.part(i, 0, *this) - part(i, 0, other);
    return parts_ == 1 ? std::abs(real) : std::hypot(real, other.part(i, 1, *this) - part(i, 1, other));
  }
  std::string text(std::size_t i) const {
    if (parts_ == 1) return text_of(dtype_, at(i, 0));
    const std::string imaginary = text_of(dtype_, at(i, 1));
    return '(' + text_of(dtype_, at(i, 0)) + (imaginary.starts_with('-') ? "" : "+") + imaginary + "j)";
  }

 private:
  double at(std::size_t i, std::size_t which) const { return numbers_[i * parts_ + which]; }
  template <class Is>
  bool any(std::size_t i, const Floats& other, const Is& is) const {
    return is(part(i, 0, other)) || (parts_ == 2 && is(part(i, 1, other)));
  }

  std::string_view dtype_;
  std::size_t parts_;
  std::vector<double> numbers_;
};

double default_allowed(std::string_view dtype, const Floats& recorded, const Floats& found) {
  double largest = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i)
    if (!recorded.is_nan(i, found) && !recorded.is_infinite(i, found))
      largest = std::max(largest, recorded.magnitude(i, found));
  const double unit = epsilon(dtype);
  return std::max(unit, std::min(most_ulps * unit, most)) * largest;
}

void compare_floats(Compared& compared, const Array& recorded, const Array& found, const Case::Tolerance* tolerance) {
  const Floats before(recorded), after(found);
  const double by_default = tolerance ? 0 : default_allowed(recorded.dtype(), before, after);
  const Bits bits = bits_of(recorded.dtype());
  const auto left = bytes_of(recorded), right = bytes_of(found);
  Worst worst(/*is_relative=*/true);
  compared.size = before.size();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const bool is_other_nan = before.is_nan(i, after) || after.is_nan(i, before);
    const bool is_infinite = !is_other_nan && (before.is_infinite(i, after) || after.is_infinite(i, before));
    const bool is_finite = !is_other_nan && !is_infinite;
    const bool is_other_infinity = is_infinite && !before.is_same(i, after);
    compared.nans += is_other_nan;
    compared.infinities += is_other_infinity;
    Judged judged;
    judged.distance = is_finite ? before.distance(i, after) : 0;
    const double size = is_finite ? before.magnitude(i, after) : 0;
    judged.allowed = tolerance ? tolerance->absolute + tolerance->relative * size : by_default;
    judged.is_pattern = is_other_nan || is_other_infinity;
    judged.is_wrong = judged.is_pattern || judged.distance > judged.allowed;
    compared.unequal += judged.is_pattern || judged.distance > 0;
    const double relative = judged.distance > 0 ? judged.distance / size : 0;
    if (std::isnan(relative) || relative > compared.max_relative) compared.max_relative = relative;
    for (std::size_t part = 0; is_finite && part < before.parts(); ++part) {
      if (before.are_nan(i, part, after)) continue;
      const std::size_t at = (i * before.parts() + part) * bits.bytes;
      compared.max_ulps = std::max(compared.max_ulps, ulps(bits, &left[at], &right[at]));
    }
    add(compared, worst, i, judged);
  }
  finish(compared, worst);
  compared.recorded = before.text(compared.worst);
  compared.found = after.text(compared.worst);
}

/// The index of a number in each dimension.
std::vector<std::int64_t> place(std::size_t number, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> at(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; number /= static_cast<std::size_t>(shape[d]))
    at[d] = static_cast<std::int64_t>(number % static_cast<std::size_t>(shape[d]));
  return at;
}

const char* in_words(Whose whose) {
  constexpr std::array words = {"given to the check", "measured when it was recorded", "of the case",
                                "the default of the dtype"};
  return words[static_cast<std::size_t>(whose)];
}

}  // namespace

Compared compared(std::string path, std::string dtype, const Array& recorded, const Array& found,
                  const Case::Tolerance* tolerance, Whose whose) {
  Compared made{std::move(path), std::move(dtype), recorded.shape(), Verdict::equal};
  made.whose = whose;
  if (recorded.shape() != found.shape() || recorded.dtype() != found.dtype()) {
    made.verdict = Verdict::differs;
    made.why = "recorded " + recorded.str() + ", found " + found.str();
  } else if (made.dtype == float0 || std::ranges::equal(bytes_of(recorded), bytes_of(found))) {
    made.size = recorded.size();
  } else if (is_integer(recorded.dtype())) {
    compare_integers(made, recorded, found, tolerance ? *tolerance : Case::Tolerance{0, 0});
  } else {
    compare_floats(made, recorded, found, tolerance);
  }
  return made;
}

std::string Compared::str() const {
  const std::string name = path + ' ' + dtype + in_brackets(shape, ",") + ": ";
  if (verdict == Verdict::equal) return name + "the same bits";
  if (!why.empty()) return name + why;
  std::string largest = "at most " + three_digits(max_absolute);
  if (max_ulps > 0) largest += " (relative " + three_digits(max_relative) + ", " + with_commas(max_ulps) + " ulps)";
  const std::string differ = " of " + with_commas(size) + " numbers differ by " + largest;
  if (verdict == Verdict::close) return name + with_commas(unequal) + differ + ", as allowed";
  std::string text = name + with_commas(differing) + differ;
  if (nans > 0) text += "; " + with_commas(nans) + " NaN on one side only";
  if (infinities > 0) text += "; " + with_commas(infinities) + " infinite on one side only";
  text += "; at " + in_brackets(place(worst, shape)) + " recorded " + recorded + ", found " + found;
  return text + "; allowed is " + three_digits(allowed) + ", " + in_words(whose);
}

}  // namespace jaxexp::runtime
