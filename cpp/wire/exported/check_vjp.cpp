// Two signatures, value by value.
#include "wire/exported/check_vjp.h"

#include <string>

#include "wire/exported/requirements.h"
#include "wire/exported/values.h"

namespace jaxexp::wire {
namespace {

using std::to_string;

void check_cotangent(const schema::AbstractValue& cotangent, const schema::AbstractValue& primal, const Path& path,
                     Comparison& comparison) {
  using schema::DType;
  const DType of_primal = primal.dtype(), found = cotangent.dtype();
  const bool is_integer =
      (of_primal >= DType::bool_ && of_primal <= DType::ui64) || of_primal == DType::i4 || of_primal == DType::ui4;
  // Keys of random numbers, and what was registered at run time, tell nothing about their tangents.
  const bool is_any = of_primal >= DType::key_fry;
  if (const DType expected = is_integer ? DType::f0 : of_primal; !is_any && found != expected)
    throw Error({&path, "dtype"},
                to_string(int(expected)) + ", the dtype of cotangents of dtype " + to_string(int(of_primal)),
                to_string(int(found)));
  if (!comparison.same_shape(cotangent, primal, path))
    throw Error({&path, "shape"}, "the shape of the primal value", "another");
}

}  // namespace

void check_vjp(const schema::Exported& function, const schema::Exported& vjp, const Path& path,
               Comparison& comparison) {
  const Values primals = Values::arguments(function), results = Values::results(function);
  const Values arguments = Values::arguments(vjp), cotangents = Values::results(vjp);
  require_count({&path, "in_avals"}, "arguments (the primal's, and a cotangent for each of its results)",
                primals.size() + std::uint64_t{results.size()}, arguments.size());
  require_count({&path, "out_avals"}, "results (a cotangent for each of the primal's arguments)", primals.size(),
                cotangents.size());
  for (std::uint32_t i = 0; i < primals.size(); ++i) {
    const schema::AbstractValue &primal = primals.aval(i), &argument = arguments.aval(i);
    const Path p{&path, "in_avals", i};
    if (argument.dtype() != primal.dtype())
      throw Error({&p, "dtype"}, to_string(int(primal.dtype())) + ", the dtype of the primal's argument",
                  to_string(int(argument.dtype())));
    if (!comparison.same_shape(argument, primal, p))
      throw Error({&p, "shape"}, "the shape of the primal's argument", "another");
    check_cotangent(cotangents.aval(i), primal, {&path, "out_avals", i}, comparison);
  }
  for (std::uint32_t i = 0; i < results.size(); ++i)
    check_cotangent(arguments.aval(primals.size() + i), results.aval(i), {&path, "in_avals", primals.size() + i},
                    comparison);
  if (!comparison.same_strings(vjp.platforms(), function.platforms(), {&path, "platforms"}))
    throw Error({&path, "platforms"}, "the platforms of the primal", "others");
  const std::uint32_t devices = device_count(vjp), of_primal = device_count(function);
  if (devices != of_primal && devices != 1 && of_primal != 1)
    throw Error({&path, "nr_devices"}, to_string(of_primal) + " devices, the primal's number", to_string(devices));
}

}  // namespace jaxexp::wire
