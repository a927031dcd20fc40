// The index of an archive, the heads and ends that lead to it, and names of members.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "shared.h"
#include "wire/archive/end.h"
#include "wire/archive/find_end.h"
#include "wire/archive/limits.h"
#include "wire/archive/member_name.h"
#include "wire/archive/records.h"
#include "wire/archive/section.h"
#include "wire/archive/sorted_chunks.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::wire {
namespace {

using tests::Bytes;
using tests::bytes_of;
using tests::refused;
using namespace std::string_literals;

std::string name_of(std::uint64_t i) { return "m/" + std::to_string(1000 + i); }

Member member(std::uint64_t i) {
  Member made;
  made.place.position = 128 + 1024 * i;
  made.place.header = 64;
  made.size = made.place.size = 700;
  made.digest[0] = static_cast<std::uint8_t>(i);
  made.modules = {{made.place.position + 300, 200, {static_cast<std::uint8_t>(i)}}};
  made.summary.fun_name = "f" + std::to_string(i);
  made.summary.writer = "test";
  made.summary.platforms = "cpu";
  made.summary.nr_devices = 1;
  return made;
}

constexpr std::uint64_t end_of_members = 1 << 20;

ArchiveIndex read(const IndexBytes& written, std::uint64_t end = end_of_members) {
  return {written.bytes, std::span(written.bytes).subspan(written.root_position, written.root_size),
          written.root_digest, end};
}

IndexBytes index_of(std::uint64_t count) {
  ArchiveRecords records;
  for (std::uint64_t i = count; i-- > 0;) records.put(name_of(i), member(i));
  return records.write("test", end_of_members);
}

TEST_CASE("an index has its members in the order of their names, and finds each of them") {
  const IndexBytes written = index_of(200);
  const ArchiveIndex index = read(written);
  index.check();
  REQUIRE(index.size() == 200);
  CHECK(index.writer() == "test");
  CHECK_FALSE(index.has_pages());
  CHECK(index.block_count() == (200 + members_in_block - 1) / members_in_block);
  for (std::uint32_t i = 0; i < 200; ++i) {
    CHECK(index.find(name_of(i)) == i);
    CHECK(index.member(i).name()->str() == name_of(i));
    CHECK(index.member(i).fun_name()->str() == "f" + std::to_string(i));
    CHECK(index.member(i).place()->position() == 128 + 1024 * i);
  }
  for (const char* name : {"", "a", "m", "m/1", "m/10000", "z"}) CHECK_FALSE(index.find(name));
  CHECK(index.lower_bound("") == 0);
  CHECK(index.lower_bound("m/1070x") == 71);
  CHECK(index.lower_bound("z") == 200);
  CHECK(index.files(0).size() == 200);
  CHECK(read(index_of(0)).size() == 0);
}

TEST_CASE("a damaged index is refused where the damage is needed, and not before") {
  const IndexBytes written = index_of(200);
  const auto damaged = [&](std::size_t at) {
    IndexBytes changed = written;
    changed.bytes[at] ^= 1;
    return changed;
  };
  CHECK_FALSE(refused([&] { read(damaged(written.root_position + 40)); }).empty());
  const auto place = read(written).block_place(2);
  const IndexBytes changed = damaged(place.position - end_of_members + 30);
  const ArchiveIndex index = read(changed);
  CHECK(index.find(name_of(0)) == 0);
  CHECK_FALSE(refused([&] { index.find(name_of(2 * members_in_block + 1)); }).empty());
  CHECK_FALSE(refused([&] { index.check(); }).empty());
  CHECK_FALSE(refused([&] { read(written, end_of_members + 8).check(); }).empty());
}

TEST_CASE("members that overlap, or that are outside of the file, are refused") {
  const auto wrong = [](const auto& change) {
    ArchiveRecords records;
    Member one = member(0), two = member(1);
    change(two);
    records.put("a", one);
    records.put("b", two);
    const IndexBytes written = records.write("test", end_of_members);
    return refused([&] { read(written).check(); });
  };
  CHECK(wrong([](Member&) {}).empty());
  CHECK_FALSE(wrong([](Member& two) { two.place.position = 128 + 640; }).empty());
  CHECK_FALSE(wrong([](Member& two) { two.place.position = end_of_members; }).empty());
  CHECK_FALSE(wrong([](Member& two) { two.modules[0].position = end_of_members; }).empty());
  CHECK(wrong([](Member& two) {
          two.place.position = 128, two.place.shared = true;
          two.modules[0].position = 428;
        }).empty());
}

TEST_CASE("records are taken over, changed and written; an index of changes refers to what it leaves") {
  const IndexBytes written = index_of(300);
  const ArchiveIndex index = read(written);
  ArchiveRecords all;
  all.take(index);
  CHECK(all.write("test", end_of_members).bytes == written.bytes);

  const std::uint64_t behind = (end_of_members + written.bytes.size() + 1024) / 8 * 8;
  ArchiveRecords records;
  records.build_on(index, end_of_members + written.root_position, 0);
  records.remove(name_of(7));
  Member added = member(300);
  added.place.position = end_of_members + 64;
  added.modules[0].position = added.place.position + 300;
  records.put("m/0new", added);
  CHECK(records.size() == 300);
  CHECK(records.get(name_of(8))->summary.fun_name == Text("f8"));
  CHECK_FALSE(records.get(name_of(7)));
  CHECK(records.of_content(member(8).digest, 700) == name_of(8));
  const IndexBytes changes = records.write("later", behind);
  CHECK(changes.bytes.size() < written.bytes.size());
  const auto root = std::span(changes.bytes).subspan(changes.root_position, changes.root_size);
  const ArchiveIndex changed({{end_of_members, written.bytes}, {behind, changes.bytes}}, root, changes.root_digest,
                             behind, changes.bytes.size());
  changed.check();
  CHECK(changed.has_pages());
  CHECK(changed.size() == 300);
  CHECK(changed.find("m/0new") == 0);
  CHECK_FALSE(changed.find(name_of(7)));
  CHECK(changed.find(name_of(299)) == 299);
}

TEST_CASE("no name is both a member's and a folder's") {
  ArchiveRecords records;
  records.put("a/b", member(0));
  records.put("a.b", member(1));
  for (const char* name : {"a", "a/b/c"}) CHECK_THROWS_AS(records.check_name(name), std::invalid_argument);
  for (const char* name : {"a/b2", "a/c", "b"}) CHECK_NOTHROW(records.check_name(name));
}

TEST_CASE("names are relative paths on every system") {
  for (const std::string& name :
       {"a"s, "a/b.c"s, "名前/é"s, "..."s, ".a"s, "ab:c"s, "1:2"s, std::string(max_name_size, 'a')})
    CHECK_MESSAGE(wrong_with_name(name).empty(), name);
  for (const std::string& name : {""s,
                                  "/a"s,
                                  "a/"s,
                                  "a//b"s,
                                  "."s,
                                  "a/../b"s,
                                  "a/."s,
                                  "a\\b"s,
                                  "C:"s,
                                  "c:/a"s,
                                  "a\nb"s,
                                  "a\0b"s,
                                  "\x7F"s,
                                  "\u202e"s,
                                  "\u200b"s,
                                  "\ufeff"s,
                                  "\xFF"s,
                                  ".jaxexp"s,
                                  ".jaxexp/index"s,
                                  std::string(max_name_size + 1, 'a')})
    CHECK_FALSE_MESSAGE(wrong_with_name(name).empty(), name);
}

TEST_CASE("ends and heads say what they said, and nothing else is one") {
  const ArchiveEnd end{123, 456, 40, 96, {1, 2, 3}};
  std::vector<ZipMember> members{{"m", 5, 7, 64}};
  const std::string text = zip_end(members, 1000, end.comment());
  Bytes last(text.end() - static_cast<std::ptrdiff_t>(ArchiveEnd::size), text.end());
  const auto found = ArchiveEnd::read(last);
  REQUIRE(found);
  CHECK(found->comment() == end.comment());
  CHECK((found->index_position == 123 && found->index_size == 456 && found->root_position == 40 &&
         found->root_size == 96));
  std::size_t read_as_another = 0;
  for (std::size_t i = ArchiveEnd::magic_at; i < last.size(); ++i) {
    last[i] ^= 1;
    if (const auto other = ArchiveEnd::read(last)) read_as_another += other->comment() == end.comment();
    CHECK(ArchiveEnd::is_resembled_by(last));
    last[i] ^= 1;
  }
  CHECK(read_as_another == 0);
  CHECK_FALSE(ArchiveEnd::is_resembled_by(Bytes(ArchiveEnd::size)));

  using Kind = Section::Kind;
  const std::string head = Section{640, 2000, {9}}.head(), begun = Section{640}.head();
  CHECK(head.size() == begun.size());
  CHECK(head.size() <= Section::most_head);
  const auto complete = Section::read(bytes_of(head), 640);
  CHECK((complete.kind == Kind::complete && complete.section.end == 2000));
  CHECK(complete.section.last_digest == Digest{9});
  CHECK(Section::read(bytes_of(begun), 640).kind == Kind::unfinished);
  CHECK(Section::read(bytes_of(head), 64).kind != Kind::complete);
  CHECK(Section::read(bytes_of("PK something else"), 640).kind == Kind::something_else);
  std::string damaged = head;
  damaged[head.size() - 40] ^= 1;
  CHECK(Section::read(bytes_of(damaged), 640).kind == Kind::damaged);
  const std::string half = head.substr(0, head.size() - 20) + begun.substr(head.size() - 20);
  CHECK(Section::is_half_written(bytes_of(half), complete.section));
  CHECK_FALSE(Section::is_half_written(bytes_of(damaged), complete.section));
}

TEST_CASE("the last complete section of a file is found, whatever follows") {
  std::string file;
  const auto add = [&](const std::string content) {  // a copy: it may be the file
    const std::uint64_t position = file.size();
    file += Section{position}.head();
    file += zip_local_header("m", content.size(), 0, file.size());
    file += content;
    const ArchiveEnd end{file.size(), 0, 0, 0, {}};
    std::vector<ZipMember> members{{"m", content.size(), 0, position}};
    file += zip_end(members, file.size(), end.comment());
    const auto last = bytes_of(file).last(ArchiveEnd::size);
    file.replace(position, Section{position}.head().size(), Section{position, file.size(), digest(last)}.head());
    return file.size();
  };
  const auto found = [&](std::string_view whole) {
    return find_end(
        whole.size(), [&](std::uint64_t at, std::size_t size) { return bytes_of(whole.substr(at, size)); }, true);
  };
  using Rest = FoundEnd::Rest;
  const std::size_t first = add("one"), second = add(file);  // with the first archive as its member
  CHECK((found(file).end == second && found(file).rest == Rest::nothing && found(file).section == first));
  CHECK(found(file + "more").end == second);
  CHECK(found(file + Section{second}.head()).rest == Rest::unfinished);
  for (const std::size_t cut : {first + 1, first + 100, second - 200, second - 1}) {
    CHECK(found(std::string_view(file).substr(0, cut)).end == first);
    CHECK(found(std::string_view(file).substr(0, cut)).rest != Rest::nothing);
  }
  for (const std::string& none : {""s, "x"s, std::string(1000, 'x'), file.substr(0, first - 1)})
    CHECK_FALSE(refused([&] { found(none); }).empty());
}

TEST_CASE("ZIP files have the checksum of ISO 3309, and members at multiples of 64") {
  CHECK(crc32(bytes_of("123456789")) == 0xCBF43926);
  CHECK(crc32({}) == 0);
  for (const std::uint64_t position : {0, 1, 63, 64, 1000})
    CHECK((position + zip_local_header("name", 5, 0, position).size()) % member_alignment == 0);
}

struct Less {
  bool operator()(int a, int b) const { return a < b; }
};

TEST_CASE("sorted chunks are a set, whatever the order of insertions") {
  for (const int step : {1, -1, 7919}) {
    SortedChunks<int, Less> chunks;
    std::set<int> expected;
    for (int i = 0; i < 3000; ++i) {
      const int key = ((i * step) % 10007 + 10007) % 10007;
      chunks.insert(key);
      expected.insert(key);
    }
    std::mt19937 random(7);
    for (int i = 0; i < 1500; ++i) {
      const int sought = static_cast<int>(random() % 10007);
      const auto found = chunks.lower_bound(sought);
      const auto other = expected.lower_bound(sought);
      REQUIRE((found == chunks.end()) == (other == expected.end()));
      if (other == expected.end()) continue;
      REQUIRE(*found == *other);
      CHECK(chunks.take(found) == sought + (*other - sought));
      expected.erase(other);
    }
    std::vector<int> left;
    for (auto at = chunks.begin(); !(at == chunks.end()); ++at) left.push_back(*at);
    CHECK(std::ranges::equal(left, expected));
  }
}

}  // namespace
}  // namespace jaxexp::wire
