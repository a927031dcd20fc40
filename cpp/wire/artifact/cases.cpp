// Writing, checking and reading the cases of a trailer.
#include "wire/artifact/cases.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "wire/artifact/layout.h"
#include "wire/base/dtype.h"
#include "wire/base/unaligned.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

using flatbuffers::FlatBufferBuilder, flatbuffers::Offset, flatbuffers::Vector;
using CaseValues = Vector<Offset<schema::CaseValue>>;

/// What an array takes in a trailer beside its shape and its elements, at least.
constexpr std::size_t min_value_size = 16;

/// What a fact takes in a report beside its texts.
constexpr std::size_t fact_size = 64;

constexpr std::uint8_t normal_distribution = 0, uniform_distribution = 1, integers_distribution = 2;

Offset<schema::CaseValue> write_value(FlatBufferBuilder& fbb, const Cases::Value& value) {
  const auto shape = fbb.CreateVector(value.shape);
  Offset<Vector<std::uint8_t>> data;
  if (value.data) {
    const std::string& bytes = value.data->bytes;
    data = fbb.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  Offset<schema::Drawn> drawn;
  if (const auto& from = value.drawn)
    drawn = schema::CreateDrawn(fbb, from->distribution, from->seed, from->first, from->second);
  Offset<schema::Tolerance> tolerance;
  if (value.tolerance) tolerance = schema::CreateTolerance(fbb, value.tolerance->relative, value.tolerance->absolute);
  return schema::CreateCaseValue(fbb, value.dtype, shape, data, value.tensor ? *value.tensor + 1 : 0, drawn, tolerance);
}

Offset<CaseValues> write_values(FlatBufferBuilder& fbb, const std::vector<Cases::Value>& values) {
  std::vector<Offset<schema::CaseValue>> offsets;
  for (const Cases::Value& value : values) offsets.push_back(write_value(fbb, value));
  return fbb.CreateVector(offsets);
}

/// A trailer begins at a multiple of four, and so these numbers need not be aligned.
std::uint64_t dim_of(const schema::CaseValue& value, std::uint32_t axis) {
  return load<std::uint64_t>(value.shape()->Data() + axis * sizeof(std::uint64_t));
}

Cases::Value read_value(const schema::CaseValue& value) {
  Cases::Value read{value.dtype(), shape_of(value), {}, {}, {}, {}};
  if (const auto* data = value.data())
    read.data = Cases::Data{{reinterpret_cast<const char*>(data->data()), data->size()}};
  if (value.tensor()) read.tensor = value.tensor() - 1;
  if (const auto* drawn = value.drawn())
    read.drawn = {drawn->distribution(), drawn->seed(), drawn->first(), drawn->second()};
  if (const auto* tolerance = value.tolerance()) read.tolerance = {tolerance->relative(), tolerance->absolute()};
  return read;
}

std::vector<Cases::Value> read_values(const CaseValues& values) {
  std::vector<Cases::Value> read;
  for (const schema::CaseValue* value : values) read.push_back(read_value(*value));
  return read;
}

std::optional<Cases::Value> read_trace(const schema::Case& one) {
  return one.trace() ? std::optional(read_value(*one.trace())) : std::nullopt;
}

/// How many bytes an array has. Throws Error where it is not known, or too large for a number.
std::uint64_t size_of(const schema::CaseValue& value, const Path& path) {
  const Dtype* const element = dtype_with(&Dtype::kind, value.dtype());
  if (!element) throw Error({&path, "dtype"}, "a dtype of JAX", dtype_name(value.dtype()));
  if (value.shape()->size() > max_case_rank)
    throw Error({&path, "shape"}, "at most " + std::to_string(max_case_rank) + " dimensions",
                std::to_string(value.shape()->size()));
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t size = element->bytes();
  for (std::uint32_t axis = 0; axis < value.shape()->size(); ++axis) {
    const std::uint64_t dim = dim_of(value, axis);
    if (dim > most || (size > 0 && dim > most / size))
      throw Error({&path, "shape"}, "an array of less than 2^63 bytes", "a larger one");
    size *= dim;
  }
  return size;
}

/// How many bits the numbers of a dtype have, where they are integers, and whether they have a sign.
struct Integers {
  int bits;
  bool is_signed;
};

std::optional<Integers> integers_of(int kind) {
  constexpr int exact = 53;  // bits of the bounds, which are float64
  const Dtype* const dtype = dtype_with(&Dtype::kind, kind);
  if (!dtype) return std::nullopt;
  const bool is_signed = dtype->numbers == Dtype::Numbers::integers;
  if (dtype->numbers == Dtype::Numbers::keys) return Integers{32, false};
  if (!dtype->is_integer() && dtype->numbers != Dtype::Numbers::truth_values) return std::nullopt;
  return Integers{std::min(static_cast<int>(dtype->bits), exact + is_signed), is_signed};
}

void check_drawn(const schema::Drawn& drawn, int dtype, const Path& path) {
  const double first = drawn.first(), second = drawn.second();
  const auto integers = integers_of(dtype);
  const auto refuse = [&](const char* expected) { throw Error(path, expected, "others"); };
  if (drawn.distribution() > integers_distribution || (integers && drawn.distribution() != integers_distribution))
    throw Error({&path, "distribution"}, integers ? "integers" : "a number below 3",
                std::to_string(drawn.distribution()));
  if (!std::isfinite(first) || !std::isfinite(second)) refuse("finite numbers");
  if (drawn.distribution() == normal_distribution) {
    if (second < 0) refuse("a deviation that is not negative");
    return;
  }
  if (drawn.distribution() == uniform_distribution) {
    if (first > second) refuse("a lower end below the upper one");
    return;
  }
  const double most = std::ldexp(1, integers ? integers->bits - (integers->is_signed ? 1 : 0) : 53);
  const double least = integers && !integers->is_signed ? 0 : -most;
  if (first >= second || first < least || second > most || first != std::floor(first) || second != std::floor(second))
    refuse("whole numbers that the dtype has, the lower end below the upper one");
}

/// Checks an array, and takes its bytes from those that are left: readers copy it as often as cases have it.
void check_value(const schema::CaseValue& value, const schema::Cases& cases, const Path& path, std::size_t& left) {
  const std::uint64_t size = size_of(value, path);
  if ((value.data() != nullptr) + (value.tensor() != 0) + (value.drawn() != nullptr) != 1)
    throw Error(path, "one of data, tensor and drawn", "none or several");
  if (value.data()) {
    if (value.data()->size() != size)
      throw Error({&path, "data"}, std::to_string(size) + " bytes for its dtype and shape",
                  std::to_string(value.data()->size()));
  }
  const std::size_t stored = min_value_size + 8 * value.shape()->size() + (value.data() ? value.data()->size() : 0);
  if (stored > left) throw Error(path, "no more bytes than the trailer has", "the same arrays several times");
  left -= stored;
  if (value.tensor()) {
    const std::uint32_t count = cases.tensors()->size();
    if (value.tensor() > count)
      throw Error({&path, "tensor"}, "an index below " + std::to_string(count), std::to_string(value.tensor() - 1));
    if (const std::uint64_t found = cases.tensors()->Get(value.tensor() - 1)->size(); found != size)
      throw Error({&path, "tensor"}, "a tensor of " + std::to_string(size) + " bytes for its dtype and shape",
                  "one of " + std::to_string(found));
  }
  if (value.drawn()) check_drawn(*value.drawn(), value.dtype(), {&path, "drawn"});
  if (const auto* tolerance = value.tolerance())
    for (const double one : {tolerance->relative(), tolerance->absolute()})
      if (!(one >= 0) || !std::isfinite(one))
        throw Error({&path, "tolerance"}, "finite numbers that are not negative", "others");
}

void check_values(const CaseValues& values, const schema::Cases& cases, const Path& path, std::size_t& left) {
  for (std::uint32_t i = 0; i < values.size(); ++i)
    check_value(*values.Get(i), cases, {path.parent, path.name, i}, left);
}

/// What its columns are is the reader's to know: later releases may have others.
void check_trace(const schema::CaseValue& trace, const schema::Cases& cases, const Path& path, std::size_t& left) {
  check_value(trace, cases, path, left);
  if (trace.dtype() != static_cast<std::uint8_t>(schema::DType::ui32) || trace.shape()->size() != 2)
    throw Error(path, "a table of uint32 numbers", "another array");
  if (trace.drawn()) throw Error(path, "the numbers of a table", "how to draw some");
}

/// Returns about how many bytes a report has of it.
std::size_t check_recording(const schema::Recording& recording, const Path& path,
                            const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::string_view last;
  std::size_t size = 0;
  for (std::uint32_t i = 0; i < recording.facts()->size(); ++i) {
    const schema::Entry& fact = *recording.facts()->Get(i);
    const Path place{&path, "facts", i};
    check_text(*fact.key(), {&place, "key"});
    check_text(*fact.value(), {&place, "value"});
    if (i > 0 && last >= fact.key()->string_view())
      throw Error({&place, "key"}, "keys in ascending order", "'" + shortened(fact.key()->string_view()) + "'");
    last = fact.key()->string_view();
    size += fact.key()->size() + fact.value()->size() + fact_size;
  }
  return size;
}

/// The size of a constant dimension; nothing for an expression.
std::optional<std::uint64_t> constant(std::string_view dim) {
  std::uint64_t size = 0;
  const auto [end, error] = std::from_chars(dim.data(), dim.data() + std::min<std::size_t>(dim.size(), 24), size);
  if (error != std::errc() || end != dim.data() + dim.size()) return std::nullopt;
  return size;
}

void check_against(const CaseValues& found, const Values& values, std::uint32_t first, const Path& path) {
  if (found.size() != values.size() - first)
    throw Error(path, std::to_string(values.size() - first) + " arrays, as the function has",
                std::to_string(found.size()));
  for (std::uint32_t i = 0; i < found.size(); ++i) {
    const schema::CaseValue& value = *found.Get(i);
    const schema::AbstractValue& aval = values.aval(first + i);
    const Path place{path.parent, path.name, i};
    if (value.dtype() != static_cast<std::uint8_t>(aval.dtype()))
      throw Error({&place, "dtype"}, dtype_name(static_cast<int>(aval.dtype())), dtype_name(value.dtype()));
    const std::uint32_t rank = Values::length(aval.shape());
    if (value.shape()->size() != rank)
      throw Error({&place, "shape"}, std::to_string(rank) + " dimensions", std::to_string(value.shape()->size()));
    for (std::uint32_t axis = 0; axis < rank; ++axis) {
      const auto size = constant(aval.shape()->Get(axis)->string_view());
      if (size && *size != dim_of(value, axis))
        throw Error({&place, "shape"}, std::to_string(*size) + " at axis " + std::to_string(axis),
                    std::to_string(dim_of(value, axis)));
    }
  }
}

}  // namespace

std::size_t Cases::size() const {
  std::size_t size = 64;
  const auto add = [&](const Value& value) {
    size += 8 * value.shape.size() + (value.data ? value.data->bytes.size() : 0) + 160;
  };
  for (const Case& one : cases) {
    size += one.name.size() + 64;
    std::ranges::for_each(one.arguments, add);
    std::ranges::for_each(one.results, add);
    if (one.trace) add(*one.trace);
  }
  for (const Recording& recording : recordings)
    for (const auto& [key, value] : recording) size += key.size() + value.size() + 64;
  for (const Weights::File& file : files) size += file.name.size() + 64;
  for (const Weights::Tensor& tensor : tensors) size += tensor.name.size() + 64;
  return size;
}

std::vector<std::uint64_t> shape_of(const schema::CaseValue& value) {
  std::vector<std::uint64_t> shape(value.shape()->size());
  for (std::uint32_t axis = 0; axis < shape.size(); ++axis) shape[axis] = dim_of(value, axis);
  return shape;
}

Offset<schema::Cases> write_cases(FlatBufferBuilder& fbb, const Cases& cases) {
  std::vector<Offset<schema::Case>> case_offsets;
  for (const Cases::Case& one : cases.cases) {
    const auto arguments = write_values(fbb, one.arguments), results = write_values(fbb, one.results);
    const auto name = fbb.CreateString(one.name);
    Offset<schema::CaseValue> trace;
    if (one.trace) trace = write_value(fbb, *one.trace);
    case_offsets.push_back(schema::CreateCase(fbb, name, one.order, arguments, results, one.recording, trace));
  }
  std::vector<Offset<schema::Recording>> recordings;
  for (const Cases::Recording& recording : cases.recordings) {
    std::vector<Offset<schema::Entry>> facts;
    for (const auto& [key, value] : recording) {
      const auto key_text = fbb.CreateString(key), value_text = fbb.CreateString(value);
      facts.push_back(schema::CreateEntry(fbb, key_text, value_text));
    }
    recordings.push_back(schema::CreateRecording(fbb, fbb.CreateVector(facts)));
  }
  const auto case_vector = fbb.CreateVector(case_offsets);
  const auto recording_vector = fbb.CreateVector(recordings);
  const auto files = write_files(fbb, cases.files);
  const auto tensors = write_tensors(fbb, cases.tensors);
  return schema::CreateCases(fbb, case_vector, recording_vector, files, tensors);
}

void check_cases(const schema::Cases& cases, const Path& path, std::size_t most_bytes,
                 const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::vector<std::size_t> recording_sizes;
  for (std::uint32_t i = 0; i < cases.recordings()->size(); ++i)
    recording_sizes.push_back(check_recording(*cases.recordings()->Get(i), {&path, "recordings", i}, check_text));
  check_different(check_tensors(*cases.files(), *cases.tensors(), path, check_text), {&path, "tensors"});
  std::size_t left = most_bytes, recordings_left = min_recordings + recordings_per_byte * most_bytes;
  std::vector<std::string_view> names;
  for (std::uint32_t i = 0; i < cases.cases()->size(); ++i) {
    const schema::Case& one = *cases.cases()->Get(i);
    const Path place{&path, "cases", i};
    check_text(*one.name(), {&place, "name"});
    names.push_back(one.name()->string_view());
    if (one.recording() >= cases.recordings()->size())
      throw Error({&place, "recording"}, "an index below " + std::to_string(cases.recordings()->size()),
                  std::to_string(one.recording()));
    if (recording_sizes[one.recording()] > recordings_left)
      throw Error({&place, "recording"}, "recordings that are not much longer than the trailer", "longer ones");
    recordings_left -= recording_sizes[one.recording()];
    check_values(*one.arguments(), cases, {&place, "arguments"}, left);
    check_values(*one.results(), cases, {&place, "results"}, left);
    if (one.trace()) check_trace(*one.trace(), cases, {&place, "trace"}, left);
  }
  check_different(std::move(names), {&path, "cases"});
}

void check_signatures(const schema::Cases& cases, const Path& path, const schema::Exported& root,
                      std::uint32_t weights) {
  std::vector<const schema::Exported*> functions;
  for (const auto& [order, function] : Chain(root)) functions.push_back(&function);
  for (std::uint32_t i = 0; i < cases.cases()->size(); ++i) {
    const schema::Case& one = *cases.cases()->Get(i);
    const Path place{&path, "cases", i};
    if (one.order() >= functions.size())
      throw Error({&place, "order"}, "a number below " + std::to_string(functions.size()), std::to_string(one.order()));
    const schema::Exported& function = *functions[one.order()];
    const Values arguments = Values::arguments(function), results = Values::results(function);
    if (weights > arguments.size())
      throw Error({&place, "arguments"}, "a function that takes the weights", "one of fewer arguments");
    check_against(*one.arguments(), arguments, weights, {&place, "arguments"});
    check_against(*one.results(), results, 0, {&place, "results"});
    for (std::uint32_t k = 0; k < one.results()->size(); ++k)
      if (one.results()->Get(k)->drawn())
        throw Error({&place, "results", k}, "the numbers of a result", "how to draw some");
  }
}

Cases read_cases(const schema::Cases& cases) {
  Cases read;
  for (const schema::Case* one : *cases.cases())
    read.cases.push_back({one->name()->str(), one->order(), read_values(*one->arguments()),
                          read_values(*one->results()), one->recording(), read_trace(*one)});
  for (const schema::Recording* recording : *cases.recordings()) {
    Cases::Recording& facts = read.recordings.emplace_back();
    for (const schema::Entry* fact : *recording->facts()) facts.emplace_back(fact->key()->str(), fact->value()->str());
  }
  read.files = read_files(*cases.files());
  read.tensors = read_tensors(*cases.tensors());
  return read;
}

}  // namespace jaxexp::wire
