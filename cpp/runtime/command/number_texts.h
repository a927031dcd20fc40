// Numbers as texts for people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jaxexp::command {

/// What is told about the numbers of an array: nothing where there is one number, or they are complex.
struct Range {
  std::string least, most, mean;  // of the finite numbers
  std::string not_finite;         // how many others there are; empty for none
};

struct NumberTexts {
  Range range;
  std::vector<std::string> words;  // a text for each number, all of one width; none if there are more than `most_words`
};

/// `data` has the `count` numbers of an array. Small floats and integers, such as float8_e5m2 and int4, have no texts.
NumberTexts number_texts(std::string_view dtype, const std::byte* data, std::size_t count, std::size_t most_words);

/// The lines of an array of these words: one for each row of the last dimension.
std::vector<std::string> laid_out(const std::vector<std::string>& words, const std::vector<std::int64_t>& shape);

}  // namespace jaxexp::command
