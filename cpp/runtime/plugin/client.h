// A plugin at work: its devices, and what compiles and holds arrays on them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/plugin/api.h"

namespace jaxexp::runtime {

struct Device {
  PJRT_Device* device;
  int id;  // in all processes
  std::string kind, description;
  std::vector<std::pair<std::string, PJRT_Memory*>> memories;  // by their kinds
};

/// Buffers and executables hold their client. Several threads may use one.
class Client {
 public:
  using Options = std::map<std::string, std::variant<std::string, std::int64_t, float, bool>>;

  /// Throws RunError.
  Client(Api api, const Options& options);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Api& api() const { return api_; }
  PJRT_Client* get() const { return client_.get(); }
  /// In lower case, as JAX calls it: "cpu", "cuda", "rocm", "tpu".
  const std::string& platform() const { return platform_; }
  const std::string& platform_version() const { return platform_version_; }
  /// What the plugin was told when it started, in alphabetical order.
  const std::string& options() const { return options_; }
  /// Those of this process.
  const std::vector<Device>& devices() const { return devices_; }

  /// How many bytes of a device's memory are in use, and how many there are; nothing where the plugin does not say.
  struct MemoryUse {
    std::optional<std::int64_t> used, limit;
  };
  MemoryUse memory_use(const Device& device) const;

  /// The stream in which other libraries put what has to be done before their numbers on this device are there, in the
  /// words of its platform; 0 where the plugin has none: then the numbers have to be there. Throws RunError.
  std::intptr_t stream(const Device& device) const;

  /// For one call after the other: those of functions with ordered effects. Throws RunError in a forked process.
  std::unique_lock<std::mutex> in_order() const;

  /// Who hears what `say` says from now on; null: nobody.
  void set_log(std::function<void(const std::string&)> log) const;
  /// One line. Text from an artifact or a plugin may have any characters.
  void say(const std::string& line) const;

  /// Which plugin this is, on which machine: what code that was compiled earlier depends on. Names and values, in the
  /// order in which a difference is worth telling. Throws RunError where it cannot be found out.
  std::vector<std::pair<std::string, std::string>> identity(const Device& device) const;

 private:
  Device describe(PJRT_Device* device) const;

  mutable std::mutex log_mutex_, order_mutex_;
  mutable std::once_flag is_build_known_;
  mutable std::string build_;
  mutable std::shared_ptr<const std::function<void(const std::string&)>> log_;
  const Api api_;
  Owned<PJRT_Client> client_;
  std::string platform_, platform_version_, options_;
  std::vector<Device> devices_;
};

}  // namespace jaxexp::runtime
