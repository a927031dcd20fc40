#include "runtime/lapack/call.h"

#include <exception>
#include <iterator>

namespace jaxexp::runtime::lapack {
namespace {

/// The extension of a frame that asks for a handler's properties; null where it is a call.
XLA_FFI_Metadata* asked_for(const XLA_FFI_CallFrame& frame) {
  for (auto* extension = frame.extension_start; extension; extension = extension->next)
    if (extension->type == XLA_FFI_Extension_Metadata)
      return reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
  return nullptr;
}

/// All versions of the FFI so far have what handlers use here, and each plugin accepts its own.
void answer(XLA_FFI_Metadata& metadata, const XLA_FFI_Api* api) {
  metadata.api_version.major_version = XLA_FFI_API_MAJOR;
  metadata.api_version.minor_version = api ? api->api_version.minor_version : XLA_FFI_API_MINOR;
}

struct Number {
  XLA_FFI_DataType type;
  const char* name;
  std::size_t bytes;
};
constexpr Number numbers[] = {{data_type<float>(), "float32", sizeof(float)},
                              {data_type<double>(), "float64", sizeof(double)},
                              {data_type<std::complex<float>>(), "complex64", sizeof(std::complex<float>)},
                              {data_type<std::complex<double>>(), "complex128", sizeof(std::complex<double>)},
                              {data_type<std::int32_t>(), "int32", sizeof(std::int32_t)},
                              {data_type<std::uint8_t>(), "uint8", sizeof(std::uint8_t)},
                              {data_type<bool>(), "bool", sizeof(bool)}};

const Number* number_of(XLA_FFI_DataType type) {
  const auto* const found = std::ranges::find(numbers, type, &Number::type);
  return found == std::end(numbers) ? nullptr : found;
}

std::string name_of(XLA_FFI_DataType type) {
  const Number* const number = number_of(type);
  return number ? number->name : std::to_string(type) + " of XLA";
}

/// Nobody sees memory that a routine left as it was, because it failed, or does not know a result.
void clear(const XLA_FFI_CallFrame& frame) {
  for (std::int64_t i = 0; i < frame.rets.size; ++i) {
    if (frame.rets.types[i] != XLA_FFI_RetType_BUFFER)
      throw CallError("a call of LAPACK has a result that is not an array");
    const auto& result = *static_cast<const XLA_FFI_Buffer*>(frame.rets.rets[i]);
    bool is_argument = false;
    for (std::int64_t j = 0; j < frame.args.size; ++j)
      is_argument = is_argument || (frame.args.types[j] == XLA_FFI_ArgType_BUFFER &&
                                    static_cast<const XLA_FFI_Buffer*>(frame.args.args[j])->data == result.data);
    if (is_argument) continue;
    const Number* const number = number_of(result.dtype);
    if (!number) throw CallError("a call of LAPACK has a result of type " + name_of(result.dtype));
    std::size_t bytes = number->bytes;
    for (std::int64_t j = 0; j < result.rank; ++j) bytes *= static_cast<std::size_t>(result.dims[j]);
    if (bytes > 0) std::memset(result.data, 0, bytes);
  }
}

XLA_FFI_Error* error(const XLA_FFI_CallFrame& frame, const char* message, XLA_FFI_Error_Code code) {
  XLA_FFI_Error_Create_Args arguments{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
  return frame.api->XLA_FFI_Error_Create(&arguments);
}

}  // namespace

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame, void (*function)(const Call&), Most most) noexcept {
  if (XLA_FFI_Metadata* const metadata = asked_for(*frame)) {
    answer(*metadata, frame->api);
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
  try {
    if (frame->args.size > most.arguments || frame->rets.size > most.results)
      throw CallError("a call of LAPACK has more arguments or results than its routine");
    clear(*frame);
    function(Call(*frame));
    return nullptr;
  } catch (const CallError& problem) {
    return error(*frame, problem.what(), XLA_FFI_Error_Code_INVALID_ARGUMENT);
  } catch (const std::exception& problem) {
    return error(*frame, problem.what(), XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);  // no memory for work space
  }
}

void Buffer::check(XLA_FFI_DataType type) const {
  if (buffer_->dtype != type) refuse("of type " + name_of(type) + ", and is of type " + name_of(buffer_->dtype));
}

void Buffer::refuse(const std::string& expected) const {
  throw CallError(std::string(what_) + ' ' + std::to_string(index_) + " of a call of LAPACK must be " + expected);
}

Buffer Call::argument(std::int64_t i) const {
  if (i >= frame_.args.size || frame_.args.types[i] != XLA_FFI_ArgType_BUFFER)
    throw CallError("a call of LAPACK has no argument " + std::to_string(i));
  return {static_cast<const XLA_FFI_Buffer*>(frame_.args.args[i]), "argument", i};
}

Buffer Call::result(std::int64_t i) const {
  if (i >= frame_.rets.size || frame_.rets.types[i] != XLA_FFI_RetType_BUFFER)
    throw CallError("a call of LAPACK has no result " + std::to_string(i));
  return {static_cast<const XLA_FFI_Buffer*>(frame_.rets.rets[i]), "result", i};
}

const void* Call::attribute(std::string_view name, XLA_FFI_DataType type) const {
  const XLA_FFI_Attrs& all = frame_.attrs;
  for (std::int64_t i = 0; i < all.size; ++i) {
    if (std::string_view(all.names[i]->ptr, all.names[i]->len) != name) continue;
    const auto* const scalar = static_cast<const XLA_FFI_Scalar*>(all.attrs[i]);
    if (all.types[i] == XLA_FFI_AttrType_SCALAR && scalar->dtype == type) return scalar->value;
  }
  throw CallError("a call of LAPACK has no attribute " + std::string(name) + " of type " + name_of(type));
}

char Call::letter(std::string_view name, std::string_view allowed) const {
  const char found = static_cast<char>(attribute<std::uint8_t>(name));
  if (allowed.find(found) == allowed.npos)
    throw CallError("the attribute " + std::string(name) + " of a call of LAPACK must be a letter of " +
                    std::string(allowed));
  return found;
}

}  // namespace jaxexp::runtime::lapack
