// What a client is asked once, when it is made.
#include "runtime/plugin/client.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <span>
#include <utility>

#include "wire/base/error.h"

namespace jaxexp::runtime {
namespace {

std::vector<PJRT_NamedValue> named_values(const Client::Options& options) {
  std::vector<PJRT_NamedValue> values;
  for (const auto& [name, option] : options) {
    auto value = JAXEXP_PJRT_STRUCT(PJRT_NamedValue, .name = name.data(), .name_size = name.size(), .value_size = 1);
    if (const auto* text = std::get_if<std::string>(&option)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->data();
      value.value_size = text->size();
    } else if (const auto* integer = std::get_if<std::int64_t>(&option)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *integer;
    } else if (const auto* number = std::get_if<float>(&option)) {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = *number;
    } else {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = std::get<bool>(option);
    }
    values.push_back(value);
  }
  return values;
}

std::string shown(const Client::Options::mapped_type& option) {
  if (const auto* text = std::get_if<std::string>(&option)) return *text;
  if (const auto* integer = std::get_if<std::int64_t>(&option)) return std::to_string(*integer);
  if (const auto* is_set = std::get_if<bool>(&option)) return *is_set ? "1" : "0";
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), std::get<float>(option)).ptr};
}

std::string shown(const Client::Options& options) {
  std::string text;
  for (const auto& [name, option] : options) text += (text.empty() ? "" : " ") + name + '=' + shown(option);
  return text;
}

}  // namespace

Client::Client(Api api, const Options& options)
    : api_(std::move(api)), client_(nullptr, {api_}), options_(shown(options)) {
  const auto values = named_values(options);
  client_.reset(
      JAXEXP_PJRT_CALL(api_, PJRT_Client_Create, "start", .create_options = values.data(), .num_options = values.size())
          .client);
  const auto name = JAXEXP_PJRT_CALL(api_, PJRT_Client_PlatformName, "say what it is for", .client = get());
  platform_.assign(name.platform_name, name.platform_name_size);
  std::ranges::transform(platform_, platform_.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto version = JAXEXP_PJRT_CALL(api_, PJRT_Client_PlatformVersion, "say its version", .client = get());
  platform_version_.assign(version.platform_version, version.platform_version_size);
  const auto found = JAXEXP_PJRT_CALL(api_, PJRT_Client_AddressableDevices, "list its devices", .client = get());
  for (PJRT_Device* device : std::span(found.addressable_devices, found.num_addressable_devices))
    devices_.push_back(describe(device));
  watch_exit();
}

Device Client::describe(PJRT_Device* device) const {
  auto* const description =
      JAXEXP_PJRT_CALL(api_, PJRT_Device_GetDescription, "describe a device", .device = device).device_description;
  const auto number =
      JAXEXP_PJRT_CALL(api_, PJRT_DeviceDescription_Id, "number its devices", .device_description = description);
  const auto kind = JAXEXP_PJRT_CALL(api_, PJRT_DeviceDescription_Kind, "say what kind a device is",
                                     .device_description = description);
  const auto text =
      JAXEXP_PJRT_CALL(api_, PJRT_DeviceDescription_ToString, "describe a device", .device_description = description);
  Device found{device,
               number.id,
               std::string(kind.device_kind, kind.device_kind_size),
               std::string(text.to_string, text.to_string_size),
               {}};

  if (!api_.has(&PJRT_Api::PJRT_Device_AddressableMemories) || !api_.has(&PJRT_Api::PJRT_Memory_Kind)) return found;
  const auto all =
      JAXEXP_PJRT_CALL(api_, PJRT_Device_AddressableMemories, "list a device's memories", .device = device);
  for (PJRT_Memory* memory : std::span(all.memories, all.num_memories)) {
    const auto said = JAXEXP_PJRT_CALL(api_, PJRT_Memory_Kind, "say what kind a memory is", .memory = memory);
    found.memories.emplace_back(std::string(said.kind, said.kind_size), memory);
  }
  return found;
}

Client::MemoryUse Client::memory_use(const Device& device) const {
  if (!api_.has(&PJRT_Api::PJRT_Device_MemoryStats)) return {};
  try {
    const auto said =
        JAXEXP_PJRT_CALL(api_, PJRT_Device_MemoryStats, "count a device's memory", .device = device.device);
    MemoryUse use{said.bytes_in_use, {}};
    if (said.bytes_limit_is_set) use.limit = said.bytes_limit;
    return use;
  } catch (const PluginError&) {  // plugins that have the function may still not implement it
    return {};
  }
}

std::unique_lock<std::mutex> Client::in_order() const {
  static_cast<void>(PluginCall());  // after a fork, the mutex may stay locked
  return std::unique_lock(order_mutex_);
}

void Client::set_log(std::function<void(const std::string&)> log) const {
  auto made = log ? std::make_shared<const std::function<void(const std::string&)>>(std::move(log)) : nullptr;
  const std::lock_guard lock(log_mutex_);
  log_.swap(made);
}

void Client::say(const std::string& line) const {
  std::unique_lock lock(log_mutex_);
  const auto log = log_;
  lock.unlock();
  if (log) (*log)(wire::escaped(line));
}

}  // namespace jaxexp::runtime
