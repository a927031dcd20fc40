// Which releases of JAX write for which StableHLO: python/jaxexp/_kernel/releases/table.py for C++.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace jaxexp::runtime {

struct StablehloRelease {
  std::array<std::int64_t, 3> newest;  // the version of StableHLO that the release reads and writes
  std::string_view name;               // as `compatibility=` takes it
};

/// The newest release for each version of StableHLO, ascending.
inline constexpr auto releases = std::to_array<StablehloRelease>({
    {{0, 16, 1}, "jax-0.4.23"}, {{0, 17, 6}, "jax-0.4.24"},   {{0, 18, 2}, "jax-0.4.25"}, {{0, 19, 4}, "jax-0.4.26"},
    {{0, 19, 9}, "jax-0.4.27"}, {{0, 19, 10}, "jax-0.4.28"},  {{1, 1, 2}, "jax-0.4.29"},  {{1, 1, 3}, "jax-0.4.30"},
    {{1, 4, 2}, "jax-0.4.31"},  {{1, 7, 1}, "jax-0.4.33"},    {{1, 7, 5}, "jax-0.4.34"},  {{1, 7, 8}, "jax-0.4.35"},
    {{1, 8, 5}, "jax-0.4.37"},  {{1, 8, 7}, "jax-0.4.38"},    {{1, 8, 9}, "jax-0.5.0"},   {{1, 9, 3}, "jax-0.5.2"},
    {{1, 10, 0}, "jax-0.5.3"},  {{1, 10, 4}, "jax-0.6.0"},    {{1, 10, 9}, "jax-0.6.1"},  {{1, 11, 0}, "jax-0.6.2"},
    {{1, 12, 1}, "jax-0.7.0"},  {{1, 13, 0}, "jax-0.7.2"},    {{1, 13, 1}, "jax-0.8.0"},  {{1, 13, 3}, "jax-0.8.1"},
    {{1, 13, 5}, "jax-0.8.3"},  {{1, 13, 7}, "jax-0.9.0.1"},  {{1, 13, 8}, "jax-0.9.1"},  {{1, 14, 0}, "jax-0.9.2"},
    {{1, 16, 0}, "jax-0.10.0"}, {{1, 17, 0}, "jax-0.10.2"},   {{1, 18, 0}, "jax-0.11.0"}, {{1, 19, 0}, "jax-0.11.1"},
    {{1, 20, 0}, "jax-0.11.2"}, {{1, 22, 0}, "jax-0.12.0.1"},
});

}  // namespace jaxexp::runtime
