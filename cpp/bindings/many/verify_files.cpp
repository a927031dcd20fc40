// Reads and verifies files in threads; Python hears of it when all are done.
#include <cstdint>
#include <filesystem>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "bindings/base/define.h"
#include "bindings/base/file.h"
#include "bindings/base/objects.h"
#include "bindings/base/texts.h"
#include "wire/artifact/opened.h"
#include "wire/base/crew.h"
#include "wire/base/error.h"
#include "wire/base/file_bytes.h"
#include "wire/bytecode/bytecode.h"
#include "wire/bytecode/head.h"
#include "wire/exported/values.h"

namespace jaxexp::bindings {
namespace {

struct Verdict {
  std::size_t size = 0;
  bool has_digests = false;
  bool has_files = false;
  std::set<std::string> absolute_paths;
  wire::Texts texts;
  std::optional<wire::Error> error;
  int system_error = 0;
  bool is_out_of_memory = false;
};

void check_modules(const wire::Opened& opened, Verdict& verdict) {
  std::set<const std::uint8_t*> read;  // functions of a hostile artifact may share a module
  for (const auto& [order, function] : wire::Chain(opened.root())) {
    opened.check_module(function, order);
    const auto module = opened.module(function, order);
    const std::string path = wire::path_in_chain(order, "mlir_module_serialized");
    const wire::Path where{nullptr, path};
    if (!read.insert(module.data()).second) continue;
    wire::check_bytecode(module, where);
    for (const std::string_view name : wire::absolute_paths(module, where)) verdict.absolute_paths.emplace(name);
  }
}

void verify(const std::filesystem::path& path, Verdict& verdict) {
  try {
    const wire::FileBytes file = wire::FileBytes::of_artifact(path, wire::FileBytes::Reading::at_once);
    verdict.size = file.bytes().size();
    if (verdict.size == 0) throw wire::Error({}, "a serialized Exported", "an empty file");
    const wire::Opened opened(file.bytes());
    verdict.has_digests = opened.trailer().has_value();
    if (const auto& trailer = opened.trailer()) {
      const auto* const cases = trailer->content().cases();
      verdict.has_files = trailer->content().weights() || (cases && cases->files()->size() > 0);
    }
    check_modules(opened, verdict);
    verdict.texts = wire::texts_of(opened);
  } catch (wire::Error& error) {
    verdict.error = std::move(error);
  } catch (const std::system_error& error) {
    verdict.system_error = error.code().value();
  } catch (const std::bad_alloc&) {
    verdict.is_out_of_memory = true;
  }
}

nb::object wrong(const Verdict& verdict) {
  if (verdict.is_out_of_memory) throw std::bad_alloc();
  if (verdict.system_error != 0) return nb::int_(verdict.system_error);
  if (!verdict.error) return nb::none();
  return nb::make_tuple(verdict.error->path, verdict.error->expected, verdict.error->found);
}

nb::list verify_files(const nb::list& given, std::size_t workers) {
  check_workers(workers);
  std::vector<std::filesystem::path> paths;
  for (nb::handle path : given) paths.push_back(path_of(path));
  std::vector<Verdict> verdicts(paths.size());
  {
    const Unlocked unlocked;
    wire::Crew::run(workers, paths.size(), [&](std::size_t i) { verify(paths[i], verdicts[i]); });
  }
  nb::list said = new_list();
  for (const Verdict& verdict : verdicts) {
    nb::list paths_in_modules = new_list();
    for (const std::string& path : verdict.absolute_paths) paths_in_modules.append(text(path));
    said.append(nb::make_tuple(verdict.size, verdict.has_digests, verdict.has_files, nb::tuple(paths_in_modules),
                               to_python(verdict.texts), wrong(verdict)));
  }
  return said;
}

}  // namespace

void define_verify_files(nb::module_& m) {
  m.def(
      "verify_files", &verify_files, "paths"_a, "workers"_a,
      nb::sig(
          "def verify_files(paths: list[str], workers: int) -> "
          "list[tuple[int, bool, bool, tuple[str, ...], tuple[typing.Any, ...], None | int | tuple[str, str, str]]]"),
      "Verifies files in threads: structure, digests, and the bytecode of modules. For each its size, whether it has "
      "digests, whether files with weights or cases are beside it, the absolute paths in its modules, "
      "what `Artifact.texts` returns, and what is wrong, if anything: an errno, or where, what was expected, and what "
      "was found.");
}

}  // namespace jaxexp::bindings
