// Reading, checking and writing trailers.
#include "wire/artifact/trailer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "wire/base/dtype.h"
#include "wire/base/text.h"
#include "wire/base/unaligned.h"
#include "wire/exported/dimension.h"
#include "wire/exported/limits.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {

// Writing, checking and reading the weights of a trailer.

std::size_t Weights::size() const {
  std::size_t size = 64;
  for (const File& file : files) size += file.name.size() + 64;
  for (const Tensor& tensor : tensors) size += tensor.name.size() + 64;
  for (const OtherName& other : other_names) size += other.name.size() + 32;
  return size;
}

Vectors::Files write_files(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::File>& files) {
  std::vector<flatbuffers::Offset<schema::TensorFile>> offsets;
  for (const Weights::File& file : files) {
    const schema::Digest content = to_schema(file.content);
    const auto name = fbb.CreateString(file.name);
    offsets.push_back(schema::CreateTensorFile(fbb, name, file.size, &content));
  }
  return fbb.CreateVector(offsets);
}

Vectors::Tensors write_tensors(flatbuffers::FlatBufferBuilder& fbb, const std::vector<Weights::Tensor>& tensors) {
  std::vector<flatbuffers::Offset<schema::Tensor>> offsets;
  for (const Weights::Tensor& tensor : tensors) {
    const schema::Digest digest = to_schema(tensor.digest);
    const auto name = fbb.CreateString(tensor.name);
    offsets.push_back(schema::CreateTensor(fbb, name, tensor.file, tensor.size, &digest));
  }
  return fbb.CreateVector(offsets);
}

flatbuffers::Offset<schema::Weights> write_weights(flatbuffers::FlatBufferBuilder& fbb, const Weights& weights) {
  std::vector<flatbuffers::Offset<schema::OtherName>> others;
  for (const Weights::OtherName& other : weights.other_names) {
    const auto name = fbb.CreateString(other.name);
    others.push_back(schema::CreateOtherName(fbb, name, other.tensor));
  }
  const auto files = write_files(fbb, weights.files);
  const auto tensors = write_tensors(fbb, weights.tensors);
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::OtherName>>> other_vector;
  if (!others.empty()) other_vector = fbb.CreateVector(others);
  return schema::CreateWeights(fbb, files, tensors, other_vector);
}

std::uint32_t count_of_other_names(const schema::Weights& weights) {
  return weights.other_names() ? weights.other_names()->size() : 0;
}

void check_different(std::vector<std::string_view> names, const Path& path) {
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end())
    throw Error(path, "names that are different", "'" + shortened(*twice) + "' twice");
}

std::vector<std::string_view> check_tensors(
    const Vectors::FilesRead& files, const Vectors::TensorsRead& tensors, const Path& path,
    const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::vector<std::string_view> file_names;  // readers open each
  for (std::uint32_t i = 0; i < files.size(); ++i) {
    const Path file{&path, "files", i};
    check_text(*files.Get(i)->name(), {&file, "name"});
    if (const std::size_t size = files.Get(i)->name()->size(); size > max_tensors_name_size)
      throw Error({&file, "name"}, "at most " + std::to_string(max_tensors_name_size) + " bytes", std::to_string(size));
    file_names.push_back(files.Get(i)->name()->string_view());
  }
  check_different(std::move(file_names), {&path, "files"});
  std::vector<std::string_view> names;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const schema::Tensor& tensor = *tensors.Get(i);
    const Path place{&path, "tensors", i};
    check_text(*tensor.name(), {&place, "name"});
    names.push_back(tensor.name()->string_view());
    if (tensor.file() >= files.size())
      throw Error({&place, "file"}, "an index below " + std::to_string(files.size()), std::to_string(tensor.file()));
  }
  return names;
}

void check_weights(const schema::Weights& weights, const Path& path,
                   const std::function<void(const flatbuffers::String&, const Path&)>& check_text) {
  std::vector<std::string_view> names = check_tensors(*weights.files(), *weights.tensors(), path, check_text);
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    const Path place{&path, "other_names", i};
    check_text(*other.name(), {&place, "name"});
    names.push_back(other.name()->string_view());
    if (other.tensor() >= weights.tensors()->size())
      throw Error({&place, "tensor"}, "an index below " + std::to_string(weights.tensors()->size()),
                  std::to_string(other.tensor()));
  }
  check_different(std::move(names), {&path, "tensors"});
}

std::vector<Weights::File> read_files(const Vectors::FilesRead& files) {
  std::vector<Weights::File> read;
  for (const schema::TensorFile* file : files)
    read.push_back({file->name()->str(), file->size(), stored(*file->content())});
  return read;
}

std::vector<Weights::Tensor> read_tensors(const Vectors::TensorsRead& tensors) {
  std::vector<Weights::Tensor> read;
  for (const schema::Tensor* tensor : tensors)
    read.push_back({tensor->name()->str(), tensor->file(), tensor->size(), stored(*tensor->digest())});
  return read;
}

Weights read_weights(const schema::Weights& weights) {
  Weights read{read_files(*weights.files()), read_tensors(*weights.tensors())};
  for (std::uint32_t i = 0; i < count_of_other_names(weights); ++i) {
    const schema::OtherName& other = *weights.other_names()->Get(i);
    read.other_names.push_back({other.name()->str(), other.tensor()});
  }
  return read;
}

// Writing, checking and reading the cases of a trailer.

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
  const auto refuse = [&](const char* expected) {
    throw Error(path, expected, std::to_string(first) + " and " + std::to_string(second));
  };
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
        throw Error({&path, "tolerance"}, "finite numbers that are not negative", std::to_string(one));
}

void check_values(const CaseValues& values, const schema::Cases& cases, const Path& path, std::size_t& left) {
  for (std::uint32_t i = 0; i < values.size(); ++i)
    check_value(*values.Get(i), cases, {path.parent, path.name, i}, left);
}

/// What its columns are is the reader's to know: later releases may have others.
void check_trace(const schema::CaseValue& trace, const schema::Cases& cases, const Path& path, std::size_t& left) {
  check_value(trace, cases, path, left);
  if (trace.dtype() != static_cast<std::uint8_t>(schema::DType::ui32) || trace.shape()->size() != 2)
    throw Error(path, "a table of uint32 numbers",
                dtype_name(trace.dtype()) + " of rank " + std::to_string(trace.shape()->size()));
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

namespace {

using flatbuffers::Offset, flatbuffers::String, flatbuffers::Vector;

constexpr std::size_t footer_size = TrailerWriter::footer_size;

// Places in a footer; schema/trailer.fbs has the table. In front of an image's is one digest more.
constexpr std::size_t metadata_digest_at = 0, metadata_size_at = 16, content_size_at = 20, trailer_digest_at = 24,
                      mark_at = 40;

const Path trailer_path{nullptr, "trailer"};

[[noreturn]] void refuse(const Path& path, std::string expected, std::string found) {
  throw Error(path, std::move(expected), std::move(found));
}

std::string changed(const Digest& found, const Digest& expected) {
  return "different bytes, with the digest " + hexadecimal(found) + " instead of " + hexadecimal(expected) +
         ": the file was damaged; get another copy of it";
}

void check_digest(std::span<const std::uint8_t> bytes, const Digest& expected, const Path& path, const char* what) {
  const Digest found = digest(bytes);
  if (found != expected) refuse(path, what, changed(found, expected));
}

Digest load_digest(const std::uint8_t* bytes) { return load<Digest>(bytes); }

/// A hostile trailer may use one text in many places, and a reader copies it each time. So the sum of all texts is
/// limited.
void check_texts(const schema::Trailer& content, std::size_t size) {
  std::size_t left = size;
  const auto text = [&](const flatbuffers::String& string, const Path& path) {
    if (string.size() > left) refuse(path, "texts of at most " + std::to_string(size) + " bytes in total", "more");
    left -= string.size();
    if (!is_utf8({string.Data(), string.size()})) refuse(path, "UTF-8", "bytes that are not");
  };
  text(*content.writer(), {&trailer_path, "writer"});
  if (Values::length(content.constraints()) > max_constraints)
    refuse({&trailer_path, "constraints"}, "at most " + std::to_string(max_constraints) + " constraints", "more");
  for (std::uint32_t i = 0; i < Values::length(content.constraints()); ++i) {
    const Path path{&trailer_path, "constraints", i};
    const String& constraint = *content.constraints()->Get(i);
    text(constraint, path);
    parse_constraint(constraint.string_view(), path);
  }
  for (std::uint32_t i = 0; i < Values::length(content.metadata()); ++i) {
    const Path path{&trailer_path, "metadata", i};
    const schema::Entry& entry = *content.metadata()->Get(i);
    text(*entry.key(), {&path, "key"});
    text(*entry.value(), {&path, "value"});
    if (i > 0 && content.metadata()->Get(i - 1)->key()->string_view() >= entry.key()->string_view())
      refuse({&path, "key"}, "keys in ascending order", "'" + shortened(entry.key()->string_view()) + "'");
  }
  if (Values::length(content.sizes()) > max_sizes)
    refuse({&trailer_path, "sizes"}, "at most " + std::to_string(max_sizes) + " sets of sizes", "more");
  for (std::uint32_t i = 0; i < Values::length(content.sizes()); ++i) {
    const Path path{&trailer_path, "sizes", i};
    std::string_view last;
    for (const schema::Size* const one : *content.sizes()->Get(i)->sizes()) {
      text(*one->variable(), path);
      const std::string_view name = one->variable()->string_view();
      if (name <= last) refuse(path, "dimension variables in ascending order", "'" + shortened(name) + "'");
      if (one->size() < 1) refuse(path, "sizes of at least 1", std::to_string(one->size()));
      last = name;
    }
  }
  for (std::uint32_t i = 0; i < Values::length(content.padded()); ++i) {
    const Path path{&trailer_path, "padded", i};
    const String& name = *content.padded()->Get(i);
    text(name, path);
    if (i > 0 && content.padded()->Get(i - 1)->string_view() >= name.string_view())
      refuse(path, "dimension variables in ascending order", "'" + shortened(name.string_view()) + "'");
  }
  if (content.weights()) check_weights(*content.weights(), {&trailer_path, "weights"}, text);
  if (content.cases()) check_cases(*content.cases(), {&trailer_path, "cases"}, size, text);
}

[[noreturn]] void refuse_kind(bool image) {
  if (image) refuse(trailer_path, "an artifact whose modules are stored apart", "one that has its modules");
  refuse(trailer_path, "an artifact with its modules",
         "one whose modules are stored apart, as in an archive: read it through the archive");
}

void check_indices(const flatbuffers::Vector<std::uint32_t>* indices, std::uint32_t end, const Path& path) {
  for (std::uint32_t i = 0; i < Values::length(indices); ++i)
    if (indices->Get(i) >= end || (i > 0 && indices->Get(i - 1) >= indices->Get(i)))
      refuse({path.parent, path.name, i}, "ascending indices below " + std::to_string(end),
             std::to_string(indices->Get(i)));
}

}  // namespace

std::optional<Trailer> Trailer::read(std::span<const std::uint8_t> buffer, bool image) {
  constexpr std::size_t mark_start = sizeof(flatbuffers::uoffset_t), end_start = mark_start + mark.size();
  if (buffer.size() < mark_start + head_size) return std::nullopt;
  // A mark that is damaged still says that there is a trailer, unless most of it is.
  const auto* const head = buffer.data() + mark_start;
  const auto& wanted = image ? image_mark : mark;
  const auto same = [&](const auto& mark) {
    return std::inner_product(mark.begin(), mark.end(), head, std::size_t{0}, std::plus<>(), std::equal_to<>());
  };
  if (const auto& other = image ? mark : image_mark; same(other) == other.size()) refuse_kind(image);
  if (same(mark) <= mark.size() / 2 && same(image_mark) <= mark.size() / 2) return std::nullopt;
  if (same(wanted) < mark.size())
    refuse(trailer_path, "the mark of a trailer at byte " + std::to_string(mark_start),
           "a damaged one; get another copy of the file");

  const std::size_t end = load<std::uint32_t>(buffer.data() + end_start);
  if (end > buffer.size())
    refuse(trailer_path, std::to_string(end) + " bytes, as the artifact says of itself",
           std::to_string(buffer.size()) + ": the file was cut or damaged; get another copy of it");
  const auto no_trailer = [&] {
    refuse(trailer_path, "the end of a trailer at byte " + std::to_string(end),
           "other bytes: the file was damaged; get another copy of it");
  };
  constexpr std::size_t start = mark_start + head_size;
  const std::size_t footer_size = wire::footer_size + (image ? sizeof(Digest) : 0);
  if (end < start + footer_size) no_trailer();
  const std::uint8_t* const footer = buffer.data() + end - wire::footer_size;
  if (!std::equal(wanted.begin(), wanted.end(), footer + mark_at)) no_trailer();
  const std::size_t metadata_size = load<std::uint32_t>(footer + metadata_size_at);
  const std::size_t content_size = load<std::uint32_t>(footer + content_size_at);
  if (content_size > end - footer_size - start || content_size % 4 != 0 || end % 4 != 0) no_trailer();
  const std::size_t content_start = end - footer_size - content_size;
  if (metadata_size < start || metadata_size > content_start || content_start >= max_buffer_size) no_trailer();
  check_digest(buffer.subspan(content_start, content_size + footer_size - wire::footer_size + trailer_digest_at),
               load_digest(footer + trailer_digest_at), trailer_path, "the trailer's bytes as they were written");
  check_digest(buffer.first(metadata_size), load_digest(footer + metadata_digest_at), {nullptr, "metadata"},
               "the bytes of the metadata as they were written");

  // The tables have few levels, and flatc's own verifier is fast enough as long as no table is shared: then each takes
  // four bytes, and the offset to it four.
  const std::uint8_t* const content = buffer.data() + content_start;
  flatbuffers::Verifier::Options options;
  options.max_tables = static_cast<flatbuffers::uoffset_t>(content_size / 8 + 1);
  flatbuffers::Verifier verifier(content, content_size, options);
  if (content_size < FLATBUFFERS_MIN_BUFFER_SIZE || !schema::VerifyTrailerBuffer(verifier))
    refuse(trailer_path, "tables inside the trailer", "tables that reach beyond its end");
  Trailer trailer;
  trailer.artifact_ = buffer.first(content_start);
  trailer.content_bytes_ = {content, content_size};
  trailer.metadata_size_ = metadata_size;
  trailer.metadata_digest_ = load_digest(buffer.data() + end - footer_size);
  trailer.image_ = image;
  trailer.content_ = schema::GetTrailer(content);
  check_texts(*trailer.content_, content_size);
  return trailer;
}

void Trailer::check(const schema::Exported& root) const {
  const std::uint32_t functions = Values::length(content_->functions());
  std::size_t position = metadata_size_;
  std::size_t count = 0;
  for (const auto& [order, function] : Chain(root)) {
    const Path path{&trailer_path, "functions", static_cast<std::int64_t>(order)};
    ++count;
    if (order >= functions) refuse(path, "notes on each function", std::to_string(functions) + " of them");
    const schema::FunctionNotes& notes = this->notes(order);
    const auto& module = *function.mlir_module_serialized();
    const auto* start = reinterpret_cast<const std::uint8_t*>(&module);
    const std::size_t size = image_ ? 0 : notes.module_size();
    if (start != artifact_.data() + position || module.size() != size)
      refuse({&path, "module_size"},
             "a module of " + std::to_string(size) + " bytes at byte " + std::to_string(position),
             std::to_string(module.size()) + " bytes at byte " + std::to_string(start - artifact_.data()));
    position += sizeof(flatbuffers::uoffset_t) + size;
    for (std::size_t left = padding(size); left > 0; --left)
      if (position >= artifact_.size() || artifact_[position++] != 0)
        refuse({&path, "module_size"}, "zeros behind the module", "a byte that is not zero");
    check_indices(notes.weak_arguments(), Values::arguments(function).size(), {&path, "weak_arguments"});
    check_indices(notes.weak_results(), Values::results(function).size(), {&path, "weak_results"});
  }
  const std::size_t arguments = Values::arguments(root).size();
  const std::uint32_t weights = content_->weights() ? content_->weights()->tensors()->size() : 0;
  if (weights > arguments)
    refuse({&trailer_path, "weights"}, "at most " + std::to_string(arguments) + " tensors, one for each argument",
           std::to_string(weights));
  if (content_->cases()) check_signatures(*content_->cases(), {&trailer_path, "cases"}, root, weights);
  if (count != functions)
    refuse({&trailer_path, "functions"}, "notes on " + std::to_string(count) + " functions", std::to_string(functions));
  if (position != artifact_.size())
    refuse(trailer_path, "a trailer at byte " + std::to_string(position) + ", behind the last module",
           "one at byte " + std::to_string(artifact_.size()));
}

std::vector<Sizes> Trailer::sizes() const {
  std::vector<Sizes> found;
  for (std::uint32_t i = 0; i < Values::length(content_->sizes()); ++i) {
    Sizes& sizes = found.emplace_back();
    for (const schema::Size* const one : *content_->sizes()->Get(i)->sizes())
      sizes.emplace_back(one->variable()->str(), one->size());
  }
  return found;
}

std::vector<std::string_view> Trailer::padded() const {
  std::vector<std::string_view> found;
  for (std::uint32_t i = 0; i < Values::length(content_->padded()); ++i)
    found.push_back(content_->padded()->Get(i)->string_view());
  return found;
}

std::size_t Trailer::whole_size() const {
  std::size_t size = metadata_size_ + content_bytes_.size() + footer_size;
  for (const schema::FunctionNotes* notes : *content_->functions())
    size += sizeof(flatbuffers::uoffset_t) + notes->module_size() + padding(notes->module_size());
  return size;
}

Digest Trailer::artifact_digest() const {
  std::array<std::uint8_t, 2 * sizeof(std::uint32_t)> sizes;
  flatbuffers::WriteScalar(sizes.data(), static_cast<std::uint32_t>(metadata_size_));
  flatbuffers::WriteScalar(sizes.data() + sizeof(std::uint32_t), static_cast<std::uint32_t>(content_bytes_.size()));
  Digester digester;
  digester.update(content_bytes_);
  digester.update(metadata_digest_);
  digester.update(sizes);
  return digester.digest();
}

Digest Trailer::module_digest(std::size_t order) const { return stored(*notes(order).module_digest()); }

void Trailer::check_module(const Digest& found, std::size_t order) const {
  const Digest expected = module_digest(order);
  if (found == expected) return;
  refuse({nullptr, path_in_chain(order, "mlir_module_serialized")}, "the bytes of the module as they were written",
         changed(found, expected));
}

TrailerWriter::TrailerWriter(const Notes& notes, std::span<const std::span<const std::uint8_t>> modules) : fbb_(512) {
  std::size_t size = 0;
  for (const auto& [key, value] : notes.metadata) size += key.size() + value.size() + 64;
  for (const std::string& constraint : notes.constraints) size += constraint.size() + 64;
  for (const Notes::Function& function : notes.functions)
    size += 4 * (function.weak_arguments.size() + function.weak_results.size()) + 128;
  for (const Sizes& sizes : notes.sizes)
    for (const auto& [name, number] : sizes) size += name.size() + 64;
  for (const std::string& name : notes.padded) size += name.size() + 64;
  if (notes.weights) size += notes.weights->size();
  if (notes.cases) size += notes.cases->size();
  if (size >= max_buffer_size / 2) throw TooLarge();

  std::vector<Offset<schema::FunctionNotes>> functions;
  functions.reserve(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const auto indices = [&](const std::vector<std::uint32_t>& indices) {
      return indices.empty() ? Offset<Vector<std::uint32_t>>() : fbb_.CreateVector(indices);
    };
    const auto arguments = indices(notes.functions[i].weak_arguments),
               results = indices(notes.functions[i].weak_results);
    const schema::Digest unknown;  // zeros
    functions.push_back(
        schema::CreateFunctionNotes(fbb_, static_cast<std::uint32_t>(modules[i].size()), &unknown, arguments, results));
  }
  const auto function_vector = fbb_.CreateVector(functions);
  Offset<Vector<Offset<String>>> constraints;
  if (!notes.constraints.empty()) constraints = fbb_.CreateVectorOfStrings(notes.constraints);
  Offset<Vector<Offset<schema::Entry>>> metadata;
  if (!notes.metadata.empty()) {
    std::vector<Offset<schema::Entry>> entries;
    for (const auto& [key, value] : notes.metadata) {
      const auto key_text = fbb_.CreateString(key), value_text = fbb_.CreateString(value);
      entries.push_back(schema::CreateEntry(fbb_, key_text, value_text));
    }
    metadata = fbb_.CreateVector(entries);
  }
  Offset<schema::Weights> weights;
  if (notes.weights) weights = write_weights(fbb_, *notes.weights);
  Offset<schema::Cases> cases;
  if (notes.cases) cases = write_cases(fbb_, *notes.cases);
  Offset<Vector<Offset<schema::Sizes>>> sizes;
  if (!notes.sizes.empty()) {
    std::vector<Offset<schema::Sizes>> sets;
    for (const Sizes& set : notes.sizes) {
      std::vector<Offset<schema::Size>> each;
      for (const auto& [name, number] : set) each.push_back(schema::CreateSize(fbb_, fbb_.CreateString(name), number));
      sets.push_back(schema::CreateSizes(fbb_, fbb_.CreateVector(each)));
    }
    sizes = fbb_.CreateVector(sets);
  }
  Offset<Vector<Offset<String>>> padded;
  if (!notes.padded.empty()) padded = fbb_.CreateVectorOfStrings(notes.padded);
  const auto writer = fbb_.CreateString(notes.writer);
  fbb_.Finish(
      schema::CreateTrailer(fbb_, writer, function_vector, constraints, metadata, weights, cases, sizes, padded));
}

void TrailerWriter::set_module_digest(std::size_t order, const Digest& digest) {
  const schema::Trailer& content = *schema::GetTrailer(fbb_.GetBufferPointer());
  const auto* place = content.functions()->Get(static_cast<std::uint32_t>(order))->module_digest()->bytes()->Data();
  std::memcpy(const_cast<std::uint8_t*>(place), digest.data(), digest.size());  // in the builder's own memory
}

std::uint8_t* TrailerWriter::finish(std::span<const std::uint8_t> metadata, std::uint8_t* target) const {
  return write_trailer(metadata, {fbb_.GetBufferPointer(), fbb_.GetSize()}, nullptr, target);
}

std::uint8_t* write_trailer(std::span<const std::uint8_t> metadata, std::span<const std::uint8_t> content,
                            const Digest* image_of, std::uint8_t* target) {
  const std::uint8_t* const start = target;
  const auto add = [&](const auto& bytes) { target = std::ranges::copy(bytes, target).out; };
  const auto number = [&](std::size_t value) {
    flatbuffers::WriteScalar(target, static_cast<std::uint32_t>(value));
    target += sizeof(std::uint32_t);
  };
  add(content);
  if (image_of) add(*image_of);
  add(digest(metadata));
  number(metadata.size());
  number(content.size());
  add(digest({start, target}));
  add(image_of ? image_mark : mark);
  return target;
}

}  // namespace jaxexp::wire
