// Asked of the processor itself and not of files of the system, which an emulator may pass on from its host.
#include "wire/compiled/cpu.h"

#include <array>
#include <cstdint>
#include <cstdio>

#if defined(_MSC_VER) && defined(_M_X64)
#include <intrin.h>
#elif defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace jaxexp::wire {
namespace {

void add(std::string& text, const char* name, std::uint64_t value) {
  std::array<char, 48> word;
  std::snprintf(word.data(), word.size(), "%s%s=%llx", text.empty() ? "" : " ", name,
                static_cast<unsigned long long>(value));
  text += word.data();
}

#if defined(__x86_64__) || defined(__i386__) || defined(_M_X64)

struct Registers {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers leaf(std::uint32_t number, std::uint32_t part = 0) {
  Registers r;
#ifdef _MSC_VER
  int found[4];
  __cpuidex(found, static_cast<int>(number & 0x80000000U), 0);
  if (static_cast<std::uint32_t>(found[0]) < number) return r;
  __cpuidex(found, static_cast<int>(number), static_cast<int>(part));
  r = {static_cast<std::uint32_t>(found[0]), static_cast<std::uint32_t>(found[1]), static_cast<std::uint32_t>(found[2]),
       static_cast<std::uint32_t>(found[3])};
#else
  __get_cpuid_count(number, part, &r.a, &r.b, &r.c, &r.d);
#endif
  return r;
}

/// Which registers the system saves: without this, the wide ones cannot be used.
std::uint64_t saved_registers() {
#ifdef _MSC_VER
  return _xgetbv(0);
#else
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
#endif
}

std::string found() {
  // In leaf 1, the other registers differ from core to core.
  constexpr std::uint32_t saves_registers = 1U << 27;
  std::string text;
  const Registers one = leaf(1), seven = leaf(7), more = leaf(7, 1), extended = leaf(0x80000001U);
  add(text, "1.c", one.c);
  add(text, "1.d", one.d);
  add(text, "7.b", seven.b);
  add(text, "7.c", seven.c);
  add(text, "7.d", seven.d);
  add(text, "7.1.a", more.a);
  add(text, "7.1.d", more.d);
  add(text, "80000001.c", extended.c);
  add(text, "80000001.d", extended.d);
  add(text, "xcr0", one.c & saves_registers ? saved_registers() : 0);
  return "x86 " + text;
}

#elif defined(__linux__)

std::string found() {
  std::string text;
  add(text, "hwcap", getauxval(AT_HWCAP));
  add(text, "hwcap2", getauxval(AT_HWCAP2));
  return "linux " + text;
}

#elif defined(__APPLE__)

std::string found() {
  std::string text;
  for (const char* name : {"hw.cputype", "hw.cpusubtype", "hw.cpufamily"}) {
    std::uint32_t value = 0;
    std::size_t size = sizeof value;
    sysctlbyname(name, &value, &size, nullptr, 0);
    add(text, name, value);
  }
  return "apple " + text;
}

#else

std::string found() { return "unknown"; }

#endif

}  // namespace

std::string cpu_features() {
  static const std::string features = found();
  return features;
}

}  // namespace jaxexp::wire
