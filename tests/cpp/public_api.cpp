// What programs see of the public headers: paths of arguments, and which exceptions there are.
//
//   public_api paths PLUGIN ARTIFACT
//   public_api errors PLUGIN ARTIFACT MISSING     the function has weights, and takes float32[4,32]
//   public_api misaligned ARCHIVE
//   public_api cases ARTIFACT
#include <jaxexp/archive.h>
#include <jaxexp/runtime.h>
#include <jaxexp/version.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace {

using namespace jaxexp;
using Bytes = std::vector<std::uint8_t>;
using std::filesystem::path;

Bytes contents(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void print(const char* what, const std::vector<Value>& values) {
  for (const Value& value : values) std::printf("%s %s\n", what, value.path.c_str());
}

void paths(const Runtime& runtime, const std::string& file) {
  const Bytes bytes = contents(file);
  const Artifact artifact(bytes);
  print("artifact", artifact.arguments());
  print("artifact.vjp", artifact.vjp()->arguments());
  const Function function = runtime.load(path(file)), vjp = *function.vjp();
  print("function", function.arguments());
  print("unbound", function.unbound().arguments());
  print("vjp", vjp.arguments());
  print("vjp.unbound", vjp.unbound().arguments());
  print("in memory", runtime.load(artifact).arguments());
  auto kept = std::make_shared<const Bytes>(bytes);
  const Function beside = runtime.load(Artifact(*kept), {.owner = kept, .file = file});
  kept.reset();
  print("in memory, of a file", beside.arguments());
  beside(Array({4, 32}, std::vector<float>(128)))[0].wait();
}

void say(const char* what, const std::function<void()>& work) {
  try {
    work();
    std::printf("%s: nothing\n", what);
  } catch (const WeightsError& error) {
    std::printf("%s: WeightsError of '%s': %s\n", what, error.file().c_str(), error.what());
  } catch (const DeserializationError& error) {
    std::printf("%s: DeserializationError: %s\n", what, error.what());
  } catch (const RunError& error) {
    std::printf("%s: RunError: %s\n", what, error.what());
  } catch (const std::system_error& error) {
    std::printf("%s: system_error: %s\n", what, error.what());
  } catch (const std::exception& error) {
    std::printf("%s: something else: %s\n", what, error.what());
  }
}

void errors(const Runtime& runtime, const std::string& file, const std::string& missing) {
  const Array x({4, 32}, std::vector<float>(128));
  const Bytes bytes = contents(file);
  const Artifact artifact(bytes);
  const Function function = runtime.load(path(file));
  say("other weights", [&] { function.with_weights(missing)(x); });
  say("an index", [&] { function.with_weights(missing + ".safetensors.index.json")(x); });
  say("a folder", [&] { function.with_weights(path(file).parent_path())(x); });
  say("no name", [&] { function.with_weights("")(x); });
  say("loaded with", [&] { runtime.load(path(file), {.weights = missing})(x); });
  say("stable and weights", [&] { runtime.load(path(file), {.weights = missing, .stable = true})(x); });
  say("stable", [&] { runtime.load(file, {.stable = true})(x); });
  say("weights", [&] { function.with_weights(missing).weights(); });
  say("an artifact", [&] { runtime.load(path(missing)); });
  say("an archive", [&] { runtime.load(path(missing), {.member = "f"}); });
  say("no archive", [&] { runtime.load(path(file), {.member = "f"}); });
  say("a member of an artifact", [&] { runtime.load(artifact, {.member = "f"}); });
  say("executables", [&] { runtime.load(path(file), {.executables = missing}); });
  say("a rank", [&] { function(Array({1}, std::vector<float>(1))); });
  say("no arguments", [&] { function(); });
  say("sizes", [&] { function.compile({{"bach", 8}}); });
  say("a shape", [&] { Array("float32", {-1}, bytes.data()); });
  say("too few numbers", [&] { Array({2}, std::vector<float>(1)); });
}

void misaligned(const std::string& file) {
  const Bytes whole = contents(file);
  for (std::size_t offset = 0; offset < 8; ++offset) {
    Bytes moved(offset);
    moved.insert(moved.end(), whole.begin(), whole.end());
    const Archive archive(std::span<const std::uint8_t>(moved).subspan(offset));
    for (const std::string_view name : archive.names())
      std::printf("%s: %s\n", std::string(name).c_str(), archive.artifact(name).arguments().at(0).str().c_str());
  }
  say("f4", [&] { Archive(whole).artifact("f4"); });
}

void print(const char* what, const Cases& cases, const std::vector<Case::Value>& values) {
  constexpr const char* distributions[] = {"normal", "uniform", "integers"};
  for (const Case::Value& value : values) {
    std::printf("  %s %s[", what, value.dtype.c_str());
    for (const std::int64_t& size : value.shape)
      std::printf("%s%lld", &size == value.shape.data() ? "" : ",", static_cast<long long>(size));
    std::printf("]");
    if (value.drawn)
      std::printf(" %s(%g, %g) by %llu", distributions[static_cast<int>(value.drawn->distribution)], value.drawn->first,
                  value.drawn->second, static_cast<unsigned long long>(value.drawn->seed));
    if (value.tensor) {
      const Weights::Tensor& tensor = cases.tensors[*value.tensor];
      std::printf(" '%s' of '%s'", std::string(tensor.name).c_str(),
                  std::string(cases.files[tensor.file].name).c_str());
    }
    for (const std::uint8_t byte : value.data) std::printf(" %d", byte);
    if (value.tolerance) std::printf(" within %g, %g", value.tolerance->relative, value.tolerance->absolute);
    std::puts("");
  }
}

void cases(const std::string& file) {
  const Bytes bytes = contents(file);
  const Cases cases = Artifact(bytes).cases();
  for (const Case& one : cases.all) {
    std::printf("%s: %zu, %s\n", std::string(one.name).c_str(), one.vjp_order,
                std::string(cases.recordings[one.recording].at(0).first).c_str());
    print("argument", cases, one.arguments);
    print("result", cases, one.results);
  }
}

}  // namespace

int main(int, char** argv) {
  static_assert(JAXEXP_VERSION_MAJOR >= 0 && JAXEXP_VERSION_MINOR >= 0 && JAXEXP_VERSION_PATCH >= 0);
  const std::string how = argv[1];
  if (how == "version") std::puts(JAXEXP_VERSION);
  if (how == "misaligned") misaligned(argv[2]);
  if (how == "cases") cases(argv[2]);
  if (how == "paths") paths(Runtime(path(argv[2])), argv[3]);
  if (how == "errors") errors(Runtime(path(argv[2])), argv[3], argv[4]);
}
