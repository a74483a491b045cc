#include "millrace/comm/wire.h"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>

namespace millrace {

std::string frame_layout() {
  return fmt::format("frames {:#x} of {} bytes, {}", Frame::kMagic, sizeof(Frame),
                     std::endian::native == std::endian::little ? "little-endian" : "big-endian");
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "localhost";
}

}  // namespace millrace
