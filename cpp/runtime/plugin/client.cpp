// What a client is asked once, when it is made.
#include "runtime/plugin/client.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <utility>

namespace jaxexp::runtime {
namespace {

std::vector<PJRT_NamedValue> named_values(const Client::Options& options) {
  std::vector<PJRT_NamedValue> values;
  for (const auto& [name, option] : options) {
    JAXEXP_PJRT_ARGUMENTS(PJRT_NamedValue, value);
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
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

std::string shown(const Client::Options& options) {
  std::ostringstream text;
  for (const auto& [name, option] : options) {
    text << (text.tellp() > 0 ? " " : "") << name << '=';
    std::visit([&](const auto& value) { text << value; }, option);
  }
  return text.str();
}

}  // namespace

Client::Client(Api api, const Options& options)
    : api_(std::move(api)), client_(nullptr, Destroy{&api_}), options_(shown(options)) {
  const auto values = named_values(options);
  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_Create_Args, creation);
  creation.create_options = values.data();
  creation.num_options = values.size();
  api_.call(&PJRT_Api::PJRT_Client_Create, creation, "start");
  client_.reset(creation.client);

  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_PlatformName_Args, name);
  name.client = get();
  api_.call(&PJRT_Api::PJRT_Client_PlatformName, name, "say what it is for");
  platform_.assign(name.platform_name, name.platform_name_size);
  std::ranges::transform(platform_, platform_.begin(), [](unsigned char c) { return std::tolower(c); });

  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_PlatformVersion_Args, version);
  version.client = get();
  api_.call(&PJRT_Api::PJRT_Client_PlatformVersion, version, "say its version");
  platform_version_.assign(version.platform_version, version.platform_version_size);

  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_AddressableDevices_Args, devices);
  devices.client = get();
  api_.call(&PJRT_Api::PJRT_Client_AddressableDevices, devices, "list its devices");
  for (std::size_t i = 0; i < devices.num_addressable_devices; ++i)
    devices_.push_back(describe(devices.addressable_devices[i]));
}

void Client::Destroy::operator()(PJRT_Client* client) const noexcept {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Client_Destroy_Args, arguments);
  arguments.client = client;
  api->call_silently(&PJRT_Api::PJRT_Client_Destroy, arguments);
}

Device Client::describe(PJRT_Device* device) const {
  JAXEXP_PJRT_ARGUMENTS(PJRT_Device_GetDescription_Args, description);
  description.device = device;
  api_.call(&PJRT_Api::PJRT_Device_GetDescription, description, "describe a device");
  JAXEXP_PJRT_ARGUMENTS(PJRT_DeviceDescription_Id_Args, id);
  id.device_description = description.device_description;
  api_.call(&PJRT_Api::PJRT_DeviceDescription_Id, id, "number its devices");
  JAXEXP_PJRT_ARGUMENTS(PJRT_DeviceDescription_Kind_Args, kind);
  kind.device_description = description.device_description;
  api_.call(&PJRT_Api::PJRT_DeviceDescription_Kind, kind, "say what kind a device is");
  Device found{device, id.id, std::string(kind.device_kind, kind.device_kind_size), {}};

  if (!api_.has(&PJRT_Api::PJRT_Device_AddressableMemories) || !api_.has(&PJRT_Api::PJRT_Memory_Kind)) return found;
  JAXEXP_PJRT_ARGUMENTS(PJRT_Device_AddressableMemories_Args, memories);
  memories.device = device;
  api_.call(&PJRT_Api::PJRT_Device_AddressableMemories, memories, "list a device's memories");
  for (std::size_t i = 0; i < memories.num_memories; ++i) {
    JAXEXP_PJRT_ARGUMENTS(PJRT_Memory_Kind_Args, memory);
    memory.memory = memories.memories[i];
    api_.call(&PJRT_Api::PJRT_Memory_Kind, memory, "say what kind a memory is");
    found.memories.emplace_back(std::string(memory.kind, memory.kind_size), memory.memory);
  }
  return found;
}

}  // namespace jaxexp::runtime
