#include "millrace/comm/c10d/store.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>

#include "millrace/base/clock.h"
#include "millrace/base/error.h"
#include "millrace/base/text.h"
#include "millrace/comm/wire.h"

namespace millrace {
namespace {

constexpr double kPollS = 0.02;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }
std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// The address from which this host reaches `host`: the kernel picks it, nothing is sent.
std::string own_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("expected the name or address of process 0's host, found `{}`, which "
                            "does not resolve here",
                            host));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      continue;
    }
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    std::array<char, NI_MAXHOST> name{};
    const bool ok = ::connect(fd, each->ai_addr, each->ai_addrlen) == 0 &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                    ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, name.data(), name.size(),
                                  nullptr, 0, NI_NUMERICHOST) == 0;
    ::close(fd);
    if (ok) {
      return name.data();
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("process 0's host `{}` cannot be reached from this one", host));
}

int wait_for_port(const PortExchange& ports, double deadline_s) {
  while (true) {
    const int port = ports.find_port ? ports.find_port() : 0;
    if (port != 0) {
      return port;
    }
    if (monotonic_s() > deadline_s) {
      throw Error(ErrorCode::kTimeout, "process 0 has not opened its store; did it fail?");
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(kPollS));
  }
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const WorldPlace& place, const PortExchange& ports,
                                              double timeout_s) {
  const bool serves = place.process == 0 && !place.store_served;
  c10d::TCPStoreOptions options;
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = milliseconds(timeout_s);
  options.port = static_cast<uint16_t>(serves || place.store_port != 0
                                           ? place.store_port
                                           : wait_for_port(ports, monotonic_s() + timeout_s));
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(place.store_host, options);
    if (serves && ports.publish_port) {
      ports.publish_port(store->getPort());
    }
    return store;
  } catch (const std::exception& error) {
    const std::string why = error.what();
    if (serves && why.find("address already in use") != std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("port {} of this host is in use, by another job perhaps; choose "
                              "another one (MASTER_PORT), or leave the choice to Millrace",
                              place.store_port));
    }
    throw Error(serves ? ErrorCode::kInvalidArgument : ErrorCode::kTimeout,
                fmt::format("process {} could not {} the store on {}:{}: {}", place.process,
                            serves ? "open" : "reach", place.store_host, options.port,
                            why.substr(0, why.find('\n'))));
  }
}

// What a process says of itself under its number. Claimed by a counter: a second process of the
// same number, from a job started twice, is refused.
void announce(c10d::TCPStore& store, const WorldPlace& place) {
  const std::string number = std::to_string(place.process);
  if (store.add("claims/" + number, 1) != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("two processes claim to be process {} of this job on {}:{}; is it "
                            "running twice with one port?",
                            place.process, place.store_host, store.getPort()));
  }
  store.set("hosts/" + number, bytes_of(own_host_name()));
}

void check_job(c10d::TCPStore& store, const WorldPlace& place) {
  const std::string own =
      fmt::format("{}\n{}\n{}", place.job_id, place.num_processes, frame_layout());
  if (place.process == 0) {
    store.set("job", bytes_of(own));
    return;
  }
  const std::string theirs = text_of(store.get("job"));
  if (theirs == own) {
    return;
  }
  const std::vector<std::string> parts = split(theirs, '\n');
  if (parts.size() == 3 && parts[0] == place.job_id && parts[2] != frame_layout()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("process 0 is another build of Millrace ({}; this one: {})", parts[2],
                            frame_layout()));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("another job answers on {}:{}: expected job `{}` of {} processes, found "
                          "`{}` of {}; give each job a port of its own",
                          place.store_host, store.getPort(), place.job_id, place.num_processes,
                          parts.empty() ? "" : parts[0], parts.size() > 1 ? parts[1] : "?"));
}

std::vector<std::string> all_hosts(c10d::TCPStore& store, const WorldPlace& place,
                                   double deadline_s) {
  std::vector<std::string> keys;
  for (int process = 0; process < place.num_processes; ++process) {
    keys.push_back("hosts/" + std::to_string(process));
  }
  while (!store.check(keys)) {
    if (monotonic_s() > deadline_s) {
      std::vector<std::string> missing;
      for (int process = 0; process < place.num_processes; ++process) {
        if (!store.check({keys[static_cast<std::size_t>(process)]})) {
          missing.push_back(std::to_string(process));
        }
      }
      throw Error(ErrorCode::kTimeout,
                  fmt::format("expected {} processes, but process {} has not joined in time; was "
                              "it started, with the same address and port?",
                              place.num_processes, join(missing, ", ")));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(kPollS));
  }
  std::vector<std::string> hosts;
  for (const std::string& key : keys) {
    hosts.push_back(text_of(store.get(key)));
  }
  return hosts;
}

}  // namespace

Rendezvous rendezvous(const WorldPlace& place, const PortExchange& ports, double timeout_s) {
  const double deadline_s = monotonic_s() + timeout_s;
  Rendezvous result;
  result.store = open_store(place, ports, timeout_s);
  try {
    check_job(*result.store, place);
    announce(*result.store, place);
    result.hosts = all_hosts(*result.store, place, deadline_s);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kPeerLost,
                fmt::format("process {} lost the store of process 0 on {}: {}", place.process,
                            place.store_host, error.what()));
  }
  result.address = own_address_towards(place.store_host);
  return result;
}

c10::intrusive_ptr<c10d::TCPStore> connect_again(const WorldPlace& place,
                                                 const c10d::TCPStore& store, double timeout_s) {
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.timeout = milliseconds(timeout_s);
  options.port = store.getPort();
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.store_host, options);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kPeerLost,
                fmt::format("process {} lost the store of process 0 on {}: {}", place.process,
                            place.store_host, first_line(error)));
  }
}

}  // namespace millrace
