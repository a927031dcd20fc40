// The heads and ends that lead to the index of an archive, and names of members.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <set>
#include <stdexcept>
#include <string>

#include "shared.h"
#include "wire/archive/end.h"
#include "wire/archive/limits.h"
#include "wire/archive/member.h"
#include "wire/archive/records.h"
#include "wire/archive/zip_file.h"

namespace jaxexp::wire {
namespace {

using tests::Bytes;
using tests::bytes_of;
using tests::refused;
using namespace std::string_literals;

TEST_CASE("no name is both a member's and a folder's") {
  ArchiveRecords records;
  for (const std::uint64_t i : {0, 1}) {
    Member member;
    member.place.position = 128 + 1024 * i;
    member.place.header = 64;
    member.size = member.place.size = 700;
    records.put(i == 0 ? "a/b" : "a.b", member);
  }
  for (const char* name : {"a", "a/b/c"}) CHECK_THROWS_AS(records.check_name(name), std::invalid_argument);
  for (const char* name : {"a/b2", "a/c", "b"}) CHECK_NOTHROW(records.check_name(name));
}

TEST_CASE("names are relative paths on every system") {
  for (const std::string& name :
       {"a"s, "a/b.c"s, "名前/é"s, "..."s, ".a"s, "ab:c"s, "1:2"s, std::string(max_name_size, 'a')})
    CHECK_MESSAGE(wrong_with_name(name).empty(), name);
  for (const std::string& name : tests::texts(
           "|/a|a/|a//b|.|a/../b|a/.|a\\b|C:|c:/a|a\nb|a\0b|\x7F|\u202e|\u200b|\ufeff|\xFF|.jaxexp|.jaxexp/index|"s +
           std::string(max_name_size + 1, 'a')))
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
