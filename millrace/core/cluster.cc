#include "millrace/core/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// More would only be a slip of the pen; it also keeps products of sizes within an int.
constexpr int64_t kMostDevices = 1 << 20;

// In memory a free link has infinite bandwidth, so that its time is exactly 0; files have no
// infinity.
constexpr double kInfiniteInFiles = std::numeric_limits<double>::max();

double to_file(double bandwidth) { return std::min(bandwidth, kInfiniteInFiles); }

double positive(Reader& reader, const char* key, const char* unit) {
  const double value = reader.number(key);
  if (value <= 0) {
    throw reader.error(key, fmt::format("expected more than 0 {}, found {}", unit, value));
  }
  return value;
}

double bandwidth(Reader& reader, const char* key) {
  const double value = positive(reader, key, "bytes per second");
  return value == kInfiniteInFiles ? std::numeric_limits<double>::infinity() : value;
}

NetworkLevel level_from(Reader& reader) {
  NetworkLevel level;
  const int64_t size = reader.count("size", 1);
  if (size > kMostDevices) {
    throw reader.error("size", fmt::format("expected at most {}, found {}", kMostDevices, size));
  }
  level.size = static_cast<int>(size);
  level.bandwidth_bytes_per_s = bandwidth(reader, "bandwidth_bytes_per_s");
  level.latency_s = reader.quantity("latency_s", 0.0);
  if (reader.raw("all_reduce_bandwidth_bytes_per_s") != nullptr) {
    level.all_reduce_bandwidth_bytes_per_s = bandwidth(reader, "all_reduce_bandwidth_bytes_per_s");
  }
  if (reader.raw("all_reduce_latency_s") != nullptr) {
    level.all_reduce_latency_s = reader.quantity("all_reduce_latency_s");
  }
  reader.finish();
  return level;
}

int device(Reader& reader, const char* key, int num_devices) {
  const int64_t value = reader.count(key, 0);
  if (value >= num_devices) {
    throw reader.error(key,
                       fmt::format("expected a device below {}, found {}", num_devices, value));
  }
  return static_cast<int>(value);
}

LinkOverride link_from(Reader& reader, int num_devices) {
  LinkOverride link;
  link.from = device(reader, "from", num_devices);
  link.to = device(reader, "to", num_devices);
  if (link.from == link.to) {
    throw reader.error("to",
                       fmt::format("a link joins two devices, found {} at both ends", link.to));
  }
  link.bandwidth_bytes_per_s = bandwidth(reader, "bandwidth_bytes_per_s");
  link.latency_s = reader.quantity("latency_s", 0.0);
  reader.finish();
  return link;
}

void read_device(Cluster& cluster, Reader& reader) {
  if (reader.raw("memory_bytes") != nullptr) {
    cluster.memory_bytes = positive(reader, "memory_bytes", "bytes");
  }
  const Value* speed = reader.raw("relative_speed");
  if (speed != nullptr && speed->kind == Value::Kind::kArray) {
    cluster.relative_speed = reader.numbers("relative_speed");
  } else if (speed != nullptr) {
    cluster.relative_speed = {reader.number("relative_speed")};
  }
  for (const double value : cluster.relative_speed) {
    if (value <= 0) {
      throw reader.error("relative_speed", fmt::format("expected speeds above 0, found {}", value));
    }
  }
  const std::size_t num_speeds = cluster.relative_speed.size();
  if (num_speeds != 1 && num_speeds != static_cast<std::size_t>(cluster.num_devices())) {
    throw reader.error(
        "relative_speed",
        fmt::format("expected one number, or one for each of the {} devices, found {}",
                    cluster.num_devices(), num_speeds));
  }
  cluster.action_overhead_s = reader.quantity("action_overhead_s", 0.0);
  reader.finish();
}

// Index of the lowest level whose components hold both devices.
std::size_t common_level(const std::vector<NetworkLevel>& levels, int a, int b) {
  int64_t component = 1;
  for (std::size_t k = 0; k < levels.size(); ++k) {
    component *= levels[k].size;
    if (a / component == b / component) {
      return k;
    }
  }
  MILLRACE_CHECK(false, fmt::format("devices {} and {} are not of one cluster", a, b));
  return 0;
}

const LinkOverride* find_override(const Cluster& cluster, int a, int b) {
  for (const LinkOverride& link : cluster.links) {
    if ((link.from == a && link.to == b) || (link.from == b && link.to == a)) {
      return &link;
    }
  }
  return nullptr;
}

}  // namespace

int Cluster::num_devices() const {
  int count = 1;
  for (const NetworkLevel& level : levels) {
    count *= level.size;
  }
  return count;
}

double Cluster::speed_of(int device) const {
  MILLRACE_CHECK(device >= 0 && device < num_devices(), fmt::format("no device {}", device));
  return relative_speed.size() == 1 ? relative_speed[0]
                                    : relative_speed.at(static_cast<std::size_t>(device));
}

const NetworkLevel& Cluster::level_between(int a, int b) const {
  MILLRACE_CHECK(a >= 0 && b >= 0 && a != b, fmt::format("no link between {} and {}", a, b));
  return levels[common_level(levels, a, b)];
}

double Cluster::bandwidth_between(int a, int b) const {
  const LinkOverride* link = find_override(*this, a, b);
  return link != nullptr ? link->bandwidth_bytes_per_s : level_between(a, b).bandwidth_bytes_per_s;
}

double Cluster::latency_between(int a, int b) const {
  const LinkOverride* link = find_override(*this, a, b);
  return link != nullptr ? link->latency_s : level_between(a, b).latency_s;
}

double Cluster::all_reduce_s(const std::vector<int>& devices, double bytes) const {
  const std::size_t count = devices.size();
  if (count <= 1) {
    return 0;
  }
  const double rounds = 2.0 * static_cast<double>(count - 1);
  const double moved = rounds / static_cast<double>(count) * bytes;
  // Neighbours of the sorted ring meet at every level that any two of the devices meet at.
  std::vector<int> ring = devices;
  std::sort(ring.begin(), ring.end());
  double slowest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const int a = ring[i];
    const int b = ring[(i + 1) % count];
    const NetworkLevel& level = level_between(a, b);
    double seconds =
        moved / level.all_reduce_bandwidth_bytes_per_s.value_or(level.bandwidth_bytes_per_s) +
        level.all_reduce_latency_s.value_or(rounds * level.latency_s);
    if (const LinkOverride* link = find_override(*this, a, b)) {
      seconds = moved / link->bandwidth_bytes_per_s + rounds * link->latency_s;
    }
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

Cluster cluster_from(const Document& document) {
  Reader reader(document);
  // Cluster files are written by hand: the two members are checked where they stand, not asked for.
  if (reader.has("artifact") || reader.has("version")) {
    expect_artifact(reader, "cluster", 1);
  }
  Cluster cluster;
  cluster.measured_on = reader.text("measured_on", "");
  int64_t devices = 1;
  for (Reader& item : reader.objects("level")) {
    cluster.levels.push_back(level_from(item));
    devices *= cluster.levels.back().size;
    if (devices > kMostDevices) {
      throw item.error("size", fmt::format("the levels make more than {} devices", kMostDevices));
    }
  }
  if (cluster.levels.empty()) {
    throw reader.error("level", "expected at least one network level, found none");
  }
  if (reader.raw("device") != nullptr) {
    Reader device_reader = reader.object("device");
    read_device(cluster, device_reader);
  }
  cluster.links = links_from(reader, "link", cluster.num_devices());
  reader.finish();
  return cluster;
}

Value to_value(const Cluster& cluster) {
  Value root = Value::map();
  root.set("artifact", Value::of("cluster"));
  root.set("version", Value::of(1));
  if (!cluster.measured_on.empty()) {
    root.set("measured_on", Value::of(cluster.measured_on));
  }
  Value& device = root.set("device", Value::map());
  device.set("memory_bytes", Value::of(cluster.memory_bytes));
  if (cluster.relative_speed.size() == 1) {
    device.set("relative_speed", Value::of(cluster.relative_speed[0]));
  } else {
    Value& speeds = device.set("relative_speed", Value::list());
    for (const double speed : cluster.relative_speed) {
      speeds.push(Value::of(speed));
    }
  }
  device.set("action_overhead_s", Value::of(cluster.action_overhead_s));
  Value levels = Value::list();
  for (const NetworkLevel& level : cluster.levels) {
    Value item = Value::map();
    item.set("size", Value::of(level.size));
    item.set("bandwidth_bytes_per_s", Value::of(to_file(level.bandwidth_bytes_per_s)));
    item.set("latency_s", Value::of(level.latency_s));
    if (level.all_reduce_bandwidth_bytes_per_s) {
      item.set("all_reduce_bandwidth_bytes_per_s",
               Value::of(to_file(*level.all_reduce_bandwidth_bytes_per_s)));
    }
    if (level.all_reduce_latency_s) {
      item.set("all_reduce_latency_s", Value::of(*level.all_reduce_latency_s));
    }
    levels.push(std::move(item));
  }
  root.set("level", std::move(levels));
  if (!cluster.links.empty()) {
    root.set("link", to_value(cluster.links));
  }
  return root;
}

std::vector<LinkOverride> links_from(Reader& reader, const char* key, int num_devices) {
  std::vector<LinkOverride> links;
  if (reader.raw(key) == nullptr) {
    return links;
  }
  std::set<std::pair<int, int>> seen;
  for (Reader& item : reader.objects(key)) {
    const LinkOverride link = link_from(item, num_devices);
    if (!seen.insert(std::minmax(link.from, link.to)).second) {
      throw item.error("", fmt::format("the link between {} and {} stands there twice; one entry "
                                       "holds for both directions",
                                       link.from, link.to));
    }
    links.push_back(link);
  }
  return links;
}

Value to_value(const std::vector<LinkOverride>& links) {
  Value list = Value::list();
  for (const LinkOverride& link : links) {
    Value item = Value::map();
    item.set("from", Value::of(link.from));
    item.set("to", Value::of(link.to));
    item.set("bandwidth_bytes_per_s", Value::of(to_file(link.bandwidth_bytes_per_s)));
    item.set("latency_s", Value::of(link.latency_s));
    list.push(std::move(item));
  }
  return list;
}

Cluster free_cluster(int workers) {
  Cluster cluster;
  NetworkLevel level;
  level.size = workers;
  level.bandwidth_bytes_per_s = std::numeric_limits<double>::infinity();
  cluster.levels.push_back(level);
  return cluster;
}

}  // namespace millrace
