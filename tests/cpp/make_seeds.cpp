// make_seeds ARTIFACTS MODULES DIMENSIONS ARCHIVES ENDS FILE...: fills five folders with what fuzz targets begin with.
// Each artifact is written again with a module of a few bytes, once without a trailer and once with one; its own module
// lies apart. Of archives there are the indexes, and whole files.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "archive.h"
#include "index.h"
#include "rebuild.h"
#include "wire/base/dtype.h"
#include "wire/base/error.h"
#include "wire/exported/check.h"
#include "wire/exported/values.h"

namespace {

using namespace jaxexp;

/// Zeros for each value; a dimension that is not constant has the size 2.
std::vector<wire::Cases::Value> zeros(const wire::Values& values) {
  std::vector<wire::Cases::Value> made;
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    const auto& aval = values.aval(i);
    wire::Cases::Value value{static_cast<std::uint8_t>(aval.dtype()), {}, {}, {}, {}, {}};
    const wire::Dtype* const dtype = wire::dtype_with(&wire::Dtype::kind, value.dtype);
    std::size_t size = dtype ? dtype->bytes() : 0;
    for (std::uint32_t d = 0; d < wire::Values::length(aval.shape()); ++d) {
      const std::string dim = aval.shape()->Get(d)->str();
      const bool is_constant = dim.size() < 9 && dim.find_first_not_of("0123456789") == std::string::npos;
      value.shape.push_back(is_constant ? std::stoul(dim) : 2);
      size *= value.shape.back();
    }
    value.data = {std::string(size, '\0')};
    made.push_back(value);
  }
  return made;
}

/// A call of a function, and one whose arguments are drawn, in a file, and compared with a tolerance.
wire::Cases cases(const wire::schema::Exported& root) {
  const auto arguments = zeros(wire::Values::arguments(root)), results = zeros(wire::Values::results(root));
  wire::Cases made{{{"first", 0, arguments, results, 0, {}}}, {{{"jax", "0.10.2"}}}, {{"f.safetensors", 64, {}}}, {}};
  auto others = made.cases[0];
  others.trace = {static_cast<std::uint8_t>(wire::schema::DType::ui32), {1, 2}, {}, {}, {}, {}};
  others.trace->data = {std::string(8, '\0')};
  for (auto& value : others.arguments) {
    if (value.dtype == static_cast<std::uint8_t>(wire::schema::DType::f32)) {
      value.data.reset(), value.drawn = {1, 7, 0, 1};
    } else {
      const std::size_t size = value.data->bytes.size();
      value.data.reset(), value.tensor = static_cast<std::uint32_t>(made.tensors.size());
      made.tensors.push_back({std::to_string(made.tensors.size()), 0, size, {}});
    }
  }
  for (auto& value : others.results) value.tolerance = {1e-3, 0};
  made.cases.push_back(others);
  return made;
}

/// A record as it may be: of a member that owns its bytes, that shares another's, or that lacks its modules.
wire::Member member(std::uint64_t i) {
  wire::Member made;
  wire::Member::Place& place = made.place;
  wire::Member::Summary& summary = made.summary;
  place.position = 128 + 1024 * i;
  place.header = 64;
  made.size = place.size = 700;
  made.digest[0] = static_cast<std::uint8_t>(i);
  made.modules = {{place.position + 300, 200, {}}};
  summary.fun_name = "f";
  summary.writer = "0.12.0.1";
  summary.platforms = "cpu\ncuda";
  summary.arguments = "float32[8,128]";
  summary.nr_devices = summary.argument_count = 1;
  if (i == 1) summary.jax_version = "0.12.0.1", made.metadata = R"({"v": 1})", made.own_metadata = true;
  if (i == 2) place.position = 128, place.shared = true, made.modules[0].position = 428;
  if (i == 3) place.apart = true, place.size = 400, made.modules[0].position = 428;
  return made;
}

/// Indexes of no members and of some, in one block and in several, without weights and with two files of them; and what
/// an append writes that changes few of the members.
std::vector<std::vector<std::uint8_t>> indexes() {
  std::vector<std::vector<std::uint8_t>> made;
  constexpr std::uint64_t end = 1 << 20;
  for (const std::uint64_t count : {0, 1, 4, 150})
    for (const bool has_weights : {false, true}) {
      wire::ArchiveRecords records;
      for (std::uint64_t i = 0; i < count; ++i) records.put("m/" + std::to_string(1000 + i), member(i));
      if (has_weights) {
        const auto header =
            static_cast<std::uint16_t>(wire::zip_local_header(wire::weights_name(0), 256, 0, 1 << 18).size());
        const std::uint64_t first = (1 << 18) + std::uint64_t{header};
        records.weights().add({first, 256, 7, header}, {{{1}, first + 64, 192}, {{2}, first, 64}});
        records.weights().add({(1 << 19) + std::uint64_t{header}, 64, 7, header}, {});
      }
      const wire::IndexBytes written = records.write("seed", end);
      made.push_back(tests::index_buffer(end, {written}));
      if (count == 0) continue;
      const auto root = std::span(written.bytes).subspan(written.root_position);
      const wire::ArchiveIndex index(written.bytes, root, written.root_digest, end);
      wire::ArchiveRecords changes;
      changes.build_on(index, 0);
      changes.remove("m/" + std::to_string(1000 + count - 1));
      const std::uint64_t behind = (end + written.bytes.size() + 7) / 8 * 8;
      made.push_back(tests::index_buffer(end, {written, changes.write("seed", behind)}));
    }
  return made;
}

/// Archives of one section and of several, with sections and without, whole and cut.
std::vector<std::vector<std::uint8_t>> files_of(
    const std::vector<std::pair<std::string, std::vector<std::uint8_t>>>& members) {
  std::vector<std::vector<std::uint8_t>> files;
  for (const bool in_section : {true, false}) {
    tests::Archive archive;
    for (std::size_t i = 0; i < std::min<std::size_t>(members.size(), 4); ++i) {
      archive.append({members[i]}, in_section || i == 2);
      const auto& whole = archive.bytes();
      for (const std::ptrdiff_t cut : {0, 1, 134, 700}) files.emplace_back(whole.begin(), whole.end() - cut);
    }
    archive.append({}, in_section);
    files.push_back(archive.bytes());
  }
  return files;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 6) return std::fputs("usage: make_seeds ARTIFACTS MODULES DIMENSIONS ARCHIVES ENDS FILE...\n", stderr), 2;
  const std::filesystem::path folder = argv[1];
  const std::filesystem::path modules = argv[2], dimensions = argv[3], archives = argv[4], ends = argv[5];
  for (const auto& path : {folder, modules, dimensions, archives, ends}) std::filesystem::create_directories(path);
  int written = 0;
  const auto write_to = [&](const std::filesystem::path& path, const auto& bytes) {
    if (bytes.size() > 1 << 16) return;
    const std::string text(bytes.begin(), bytes.end());
    std::ofstream(path / ("seed_" + std::to_string(written++)), std::ios::binary) << text;
  };
  const auto write = [&](const auto& bytes) { write_to(folder, bytes); };
  for (const auto& index : indexes()) write_to(archives, index);
  std::set<std::string> texts;
  std::vector<std::pair<std::string, std::vector<std::uint8_t>>> members;
  for (int i = 6; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    const std::vector<std::uint8_t> bytes(text.begin(), text.end());
    try {
      const auto& root = wire::verify(bytes);
      wire::check(root, bytes.size());
      write(tests::rebuild(root, 8));
      const auto& module = *root.mlir_module_serialized();
      write_to(modules, std::string(reinterpret_cast<const char*>(module.data()), module.size()));
      for (const auto* aval : {root.in_avals(), root.unique_avals()})
        for (std::uint32_t k = 0; aval && k < aval->size(); ++k)
          for (std::uint32_t d = 0; aval->Get(k)->shape() && d < aval->Get(k)->shape()->size(); ++d)
            if (texts.insert(aval->Get(k)->shape()->Get(d)->str()).second)
              write_to(dimensions, aval->Get(k)->shape()->Get(d)->str());
      wire::Notes notes{
          .writer = "seed", .metadata = {{"key", "[1, null]"}, {"other", "\"\""}}, .constraints = {"mod(b, 8) == 0"}};
      for (const auto* e = &root; e; e = e->vjp()) notes.functions.push_back({{}, {}});
      notes.functions[0].weak_results = {0};
      members.emplace_back("m" + std::to_string(i), tests::rebuild(root, 8, &notes));
      write(members.back().second);
      notes.cases = cases(root);
      write(tests::rebuild(root, 8, &notes));
    } catch (const wire::Error&) {
      write(bytes);  // a hostile file is a seed as it is
    }
  }
  for (const auto& file : files_of(members)) write_to(ends, file);
  std::printf("%d seeds\n", written);
} catch (const std::exception& error) {
  std::fprintf(stderr, "make_seeds: %s\n", error.what());
  return 1;
}
