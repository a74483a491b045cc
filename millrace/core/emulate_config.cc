#include "millrace/core/emulate_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/error.h"

namespace millrace {
namespace {

// Whether devices of these speeds can be had by waiting after a computation.
std::optional<double> too_fast(const EmulateConfig& config, const std::vector<double>& speeds) {
  if (config.profile.empty()) {
    for (const double speed : speeds) {
      if (speed > config.time_scale) {
        return speed;
      }
    }
  }
  return std::nullopt;
}

std::string too_fast_text(const EmulateConfig& config, double speed) {
  return fmt::format(
      "a model that computes cannot be faster than it is: expected speeds up to time_scale = {}, "
      "found {}; lower the speed, raise time_scale, or give a profile to wait by",
      config.time_scale, speed);
}

}  // namespace

EmulateConfig emulate_config_from(Reader& reader, int workers) {
  EmulateConfig config;
  config.profile = reader.text("profile", "");
  if (config.profile.empty() && reader.has("profile")) {
    throw reader.error("profile", "expected a profile's file, found empty text");
  }
  config.time_scale = reader.number("time_scale", config.time_scale);
  if (config.time_scale <= 0) {
    throw reader.error("time_scale",
                       fmt::format("expected a factor above 0, found {}", config.time_scale));
  }
  if (reader.raw("shrink") != nullptr) {
    config.shrink = reader.number("shrink");
    if (*config.shrink < 1) {
      throw reader.error("shrink", fmt::format("expected 1 or more, found {}", *config.shrink));
    }
    if (config.profile.empty()) {
      throw reader.error("shrink",
                         "a model that computes has its own sizes; leave shrink out, or "
                         "give a profile to wait by");
    }
  }
  if (const Value* speeds = reader.raw("speeds")) {
    config.speeds = speeds->kind == Value::Kind::kArray
                        ? reader.numbers("speeds")
                        : std::vector<double>{reader.number("speeds")};
    if (config.speeds.size() != 1 && config.speeds.size() != static_cast<std::size_t>(workers)) {
      throw reader.error("speeds", fmt::format("expected one number, or one for each of the {} "
                                               "workers, found {}",
                                               workers, config.speeds.size()));
    }
    for (const double speed : config.speeds) {
      if (speed <= 0) {
        throw reader.error("speeds", fmt::format("expected speeds above 0, found {}", speed));
      }
    }
    if (const std::optional<double> speed = too_fast(config, config.speeds)) {
      throw reader.error("speeds", too_fast_text(config, *speed));
    }
  }
  config.spell_steps = reader.integer("spell_steps", config.spell_steps);
  if (config.spell_steps < 0) {
    throw reader.error("spell_steps",
                       fmt::format("expected 0 or more steps, found {}", config.spell_steps));
  }
  config.spell_slowdown = reader.number("spell_slowdown", config.spell_slowdown);
  if (config.spell_slowdown < 1) {
    throw reader.error("spell_slowdown",
                       fmt::format("expected 1 or more, found {}", config.spell_slowdown));
  }
  config.links = links_from(reader, "link", workers);
  reader.finish();
  return config;
}

Value to_value(const EmulateConfig& config) {
  Value root = Value::map();
  if (!config.profile.empty()) {
    root.set("profile", Value::of(config.profile));
  }
  root.set("time_scale", Value::of(config.time_scale));
  if (config.shrink) {
    root.set("shrink", Value::of(*config.shrink));
  }
  if (config.speeds.size() == 1) {
    root.set("speeds", Value::of(config.speeds[0]));
  } else if (!config.speeds.empty()) {
    Value& speeds = root.set("speeds", Value::list());
    for (const double speed : config.speeds) {
      speeds.push(Value::of(speed));
    }
  }
  if (config.spell_steps > 0) {
    root.set("spell_steps", Value::of(config.spell_steps));
    root.set("spell_slowdown", Value::of(config.spell_slowdown));
  }
  if (!config.links.empty()) {
    root.set("link", to_value(config.links));
  }
  return root;
}

double spell_slowdown(const EmulateConfig& config, int worker, int workers, int64_t step) {
  const bool slow = config.spell_steps > 0 && step / config.spell_steps % workers == worker;
  return slow ? config.spell_slowdown : 1;
}

Cluster emulated_cluster(const EmulateConfig& config, Cluster cluster) {
  if (!config.speeds.empty()) {
    cluster.relative_speed = config.speeds;
    if (config.speeds.size() > 1) {
      cluster.relative_speed.resize(static_cast<std::size_t>(cluster.num_devices()), 1.0);
    }
  }
  if (const std::optional<double> speed = too_fast(config, cluster.relative_speed)) {
    throw Error(ErrorCode::kInvalidArgument, too_fast_text(config, *speed))
        .at_key("device.relative_speed");
  }
  for (const LinkOverride& link : config.links) {
    std::erase_if(cluster.links, [&link](const LinkOverride& other) {
      return std::minmax(link.from, link.to) == std::minmax(other.from, other.to);
    });
    cluster.links.push_back(link);
  }
  return cluster;
}

}  // namespace millrace
