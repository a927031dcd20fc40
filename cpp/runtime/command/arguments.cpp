// Options have one form: two dashes, a name, and the value as the next argument.
#include "runtime/command/arguments.h"

#include <charconv>
#include <string_view>

#include "runtime/api/option.h"

namespace jaxexp::command {
namespace {

template <class Number>
Number parsed(const std::string& option, std::string_view text) {
  Number number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || rest != text.data() + text.size())
    throw UsageError(option + " takes a number, and not '" + std::string(text) + "'");
  return number;
}

std::pair<std::string, std::string> split(const std::string& option, const std::string& text) {
  const std::size_t at = text.find('=');
  if (at == text.npos || at == 0) throw UsageError(option + " takes NAME=VALUE, and not '" + text + "'");
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

const char* const usage =
    R"(usage: jaxexp-run --plugin PLUGIN ARTIFACT [INPUT...] [--out FILE]
       jaxexp-run --inspect ARTIFACT

Runs a function that jax.export or jaxexp has serialized, on a PJRT plugin.

  INPUT               arguments in their order: .npy files, or a .npz file (of np.savez) with all of them, whose
                      members are named by paths, or arr_0, arr_1, ...
  --argument P=FILE   an argument by its path in the tree, as in "--argument args[0]['w']=w.npy"
  --out FILE          where the results go: .npy for one, .npz for any number (by their paths)
  --plugin PLUGIN     the shared library of a PJRT plugin
  --option NAME=VALUE what the plugin is told when it starts
  --device N          a device to run on; once for each device of the function (default: the first ones)
  --member NAME       the function of this name, where ARTIFACT is an archive
  --vjp N             not the function but its VJP (1), the VJP's VJP (2), ...
  --weights FILE      the weights: a safetensors file, or an index of several (default: what ARTIFACT names)
  --save-executable FILE  add the compiled code to FILE, which is made if it is not there, and do not call
  --executables FILE  use the code in FILE, where it fits; FILE is trusted like a program
  --repeat N          call the function N times more, and say how long that takes
  --inspect           say what the function takes and returns; needs no plugin
)";

Arguments::Arguments(int count, char** texts) {
  std::vector<std::string> files;
  for (int i = 1; i < count; ++i) {
    const std::string option = texts[i];
    if (!option.starts_with("--")) {
      files.push_back(option);
      continue;
    }
    if (option == "--help" || option == "--inspect") {
      (option == "--help" ? help : inspect) = true;
      continue;
    }
    if (i + 1 == count) throw UsageError(option + " takes a value");
    const std::string value = texts[++i];
    if (option == "--plugin")
      plugin = value;
    else if (option == "--out")
      out = value;
    else if (option == "--member")
      member = value;
    else if (option == "--executables")
      executables = value;
    else if (option == "--save-executable")
      save_executable = value;
    else if (option == "--weights")
      weights = value;
    else if (option == "--argument") {
      // The path may have a '=' in a key; the file's name has none.
      const std::size_t at = value.rfind('=');
      if (at == value.npos || at == 0) throw UsageError("--argument takes PATH=FILE, and not '" + value + "'");
      named_inputs.emplace_back(value.substr(0, at), value.substr(at + 1));
    } else if (option == "--option") {
      const auto [name, text] = split(option, value);
      options[name] = runtime::option_value(text);
    } else if (option == "--device")
      devices.push_back(parsed<std::size_t>(option, value));
    else if (option == "--repeat")
      repeat = parsed<std::size_t>(option, value);
    else if (option == "--vjp")
      vjp_order = parsed<std::size_t>(option, value);
    else
      throw UsageError("there is no option " + option);
  }
  if (help) return;
  if (files.empty()) throw UsageError("an artifact is missing");
  if (plugin.empty() && !inspect) throw UsageError("--plugin is missing");
  if (!out.empty() && !out.ends_with(".npy") && !out.ends_with(".npz"))
    throw UsageError("--out takes a file .npy or .npz, and not '" + out + "'");
  artifact = files.front();
  inputs.assign(files.begin() + 1, files.end());
}

}  // namespace jaxexp::command
