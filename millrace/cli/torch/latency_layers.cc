#include "millrace/cli/torch/latency_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "millrace/base/random.h"
#include "millrace/model/layers.h"

namespace millrace::cli {
namespace {

// Bounds of what a layer may be: multiplications and additions of a forward, elements of its input
// and its output.
constexpr double kLeastFlops = 1e6;
constexpr double kMostFlops = 1.2e8;
constexpr int64_t kLeastElements = 120'000;
constexpr int64_t kMostElements = 2'000'000;

// Draws of one layer.
class Draws {
 public:
  explicit Draws(const RandomKey& key) : key_(key) {}
  // A whole number, uniform in its logarithm.
  int64_t size(int64_t least, int64_t most) {
    const double low = std::log(static_cast<double>(least));
    const double high = std::log(static_cast<double>(most) + 0.999);
    return std::clamp(static_cast<int64_t>(std::exp(low + (high - low) * key_.uniform(next_++))),
                      least, most);
  }
  // Half of all widths in use are multiples of 8 or 16.
  int64_t width(int64_t least, int64_t most) {
    const int64_t drawn = size(least, most);
    const int64_t unit = drawn >= 64 ? 16 : 8;
    return pick({0, 1}) == 0 || drawn < unit ? drawn : drawn / unit * unit;
  }
  int64_t pick(std::initializer_list<int64_t> choices) {
    return *(choices.begin() + static_cast<std::ptrdiff_t>(key_.below(next_++, choices.size())));
  }

 private:
  RandomKey key_;
  uint64_t next_ = 0;
};

// A layer, unless it is too small or too large.
struct Candidate {
  DrawnLayer drawn;
  bool fits = false;
};

bool elements_fit(int64_t input, int64_t output) {
  return std::max(input, output) >= kLeastElements && std::max(input, output) <= kMostElements;
}

bool work_fits(double flops, int64_t input, int64_t output) {
  return flops >= kLeastFlops && flops <= kMostFlops && std::max(input, output) <= kMostElements;
}

Candidate draw_linear(Draws& draws) {
  const int64_t samples = draws.pick({4, 16, 64, 128});
  const int64_t positions = draws.pick({0, 0, 1}) == 0 ? 1 : draws.size(2, 64);
  const int64_t in = draws.width(8, 4096);
  const int64_t out = draws.width(8, 4096);
  const int64_t rows = samples * positions;
  TensorSpec input{{in}, at::kFloat};
  if (positions > 1) {
    input.sample_shape = {positions, in};
  }
  const std::string name =
      fmt::format("linear samples={} positions={} in={} out={}", samples, positions, in, out);
  return {{name,
           [=] {
             return LayerAlone{linear(name, in, out), input, 1, 0, samples};
           }},
          work_fits(2.0 * static_cast<double>(rows * in * out), rows * in, rows * out) &&
              in * out <= 4'000'000};
}

Candidate draw_conv2d(Draws& draws) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t in = draws.pick({0, 0, 0, 1}) == 0 ? draws.width(4, 256) : draws.pick({1, 3});
  const int64_t out = draws.width(4, 256);
  const int64_t kernel = draws.pick({1, 3, 3, 5});
  const int64_t stride = draws.pick({1, 1, 2});
  const int64_t padding = draws.pick({0, 1, 1}) == 0 ? 0 : kernel / 2;
  const int64_t extent = draws.size(4, 64);
  const std::string name =
      fmt::format("conv2d samples={} in={} out={} kernel={} padding={} stride={} extent={}",
                  samples, in, out, kernel, padding, stride, extent);
  if (extent + 2 * padding < kernel) {
    return {};
  }
  const int64_t made = (extent + 2 * padding - kernel) / stride + 1;
  const int64_t places = samples * made * made;
  return {{name,
           [=] {
             return LayerAlone{conv2d(name, in, out, kernel, padding, stride),
                               {{in, extent, extent}, at::kFloat},
                               1,
                               0,
                               samples};
           }},
          work_fits(2.0 * static_cast<double>(places * in * out * kernel * kernel),
                    samples * in * extent * extent, places * out)};
}

// Kinds over images: [channels, extent, extent].
template <typename Make>
Candidate draw_image(Draws& draws, const char* kind, int64_t shrink, Make make) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t channels = draws.width(4, 256);
  const int64_t extent = draws.size(std::max<int64_t>(4, shrink), 64);
  const std::string name = fmt::format("{} samples={} channels={} extent={} size={}", kind, samples,
                                       channels, extent, shrink);
  const int64_t elements = samples * channels * extent * extent;
  return {{name,
           [=] {
             return LayerAlone{
                 make(name, channels), {{channels, extent, extent}, at::kFloat}, 1, 0, samples};
           }},
          elements_fit(elements, 0)};
}

// Kinds over any shape, here one of three forms.
template <typename Make>
Candidate draw_plain(Draws& draws, const char* kind, int num_inputs, Make make) {
  const int64_t samples = draws.pick({4, 16, 64, 128});
  std::vector<int64_t> shape;
  switch (draws.pick({1, 2, 3})) {
    case 1:
      shape = {draws.width(64, 8192)};
      break;
    case 2:
      shape = {draws.size(4, 64), draws.width(16, 1024)};
      break;
    default: {
      const int64_t extent = draws.size(4, 64);
      shape = {draws.width(4, 256), extent, extent};
    }
  }
  const TensorSpec input{shape, at::kFloat};
  const std::string name = fmt::format("{} samples={} {}", kind, samples, to_string(input));
  return {{name,
           [=] {
             return LayerAlone{make(name), input, num_inputs, 0, samples};
           }},
          elements_fit(samples * input.sample_elements(), 0)};
}

// Kinds over sequences: [positions, width].
template <typename Make>
Candidate draw_sequence(Draws& draws, const char* kind, Make make) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t positions = draws.size(4, 128);
  const int64_t width = draws.width(16, 1024);
  const std::string name =
      fmt::format("{} samples={} positions={} width={}", kind, samples, positions, width);
  return {{name,
           [=] {
             return LayerAlone{
                 make(name, positions, width), {{positions, width}, at::kFloat}, 1, 0, samples};
           }},
          elements_fit(samples * positions * width, 0)};
}

Candidate draw_embedding(Draws& draws) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t positions = draws.size(8, 128);
  const int64_t rows = draws.size(32, 8192);
  const int64_t width = draws.width(16, 512);
  const std::string name = fmt::format("embedding samples={} positions={} rows={} width={}",
                                       samples, positions, rows, width);
  return {{name,
           [=] {
             return LayerAlone{
                 embedding(name, rows, width), {{positions}, at::kLong}, 1, rows, samples};
           }},
          elements_fit(samples * positions * width, 0) && rows * width <= kMostElements};
}

Candidate draw_attention(Draws& draws) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t positions = draws.size(4, 128);
  const int64_t heads = draws.pick({1, 2, 4, 8});
  const int64_t width = heads * draws.size(8, 64);
  const std::string name = fmt::format("attention samples={} positions={} width={} heads={}",
                                       samples, positions, width, heads);
  const int64_t elements = samples * positions * width;
  return {
      {name,
       [=] {
         return LayerAlone{
             attention(name, width, heads), {{positions, 3 * width}, at::kFloat}, 1, 0, samples};
       }},
      work_fits(4.0 * static_cast<double>(elements * positions), 3 * elements, elements)};
}

Candidate draw_lstm(Draws& draws) {
  const int64_t samples = draws.pick({4, 16, 64});
  const int64_t positions = draws.size(2, 32);
  const int64_t in = draws.width(8, 512);
  const int64_t hidden = draws.width(8, 512);
  const std::string name =
      fmt::format("lstm samples={} positions={} in={} hidden={}", samples, positions, in, hidden);
  const int64_t rows = samples * positions;
  return {
      {name,
       [=] {
         return LayerAlone{lstm(name, in, hidden), {{positions, in}, at::kFloat}, 1, 0, samples};
       }},
      work_fits(8.0 * static_cast<double>(rows * hidden * (in + hidden)), rows * in,
                4 * rows * hidden)};
}

struct Kind {
  int share;  // of all shares
  Candidate (*draw)(Draws& draws);
};

const Kind kKinds[] = {
    {28, draw_conv2d},
    {20, draw_linear},
    {9, draw_lstm},
    {9, draw_attention},
    {6,
     [](Draws& draws) {
       return draw_image(draws, "batch_norm2d", 1, [](const std::string& name, int64_t channels) {
         return batch_norm2d(name, channels);
       });
     }},
    {5,
     [](Draws& draws) {
       const int64_t size = draws.pick({2, 3, 4});
       return draw_image(draws, "max_pool2d", size, [size](const std::string& name, int64_t) {
         return max_pool2d(name, size);
       });
     }},
    {3,
     [](Draws& draws) {
       return draw_image(draws, "global_average_pool", 1, [](const std::string& name, int64_t) {
         return global_average_pool(name);
       });
     }},
    {6, draw_embedding},
    {5,
     [](Draws& draws) {
       return draw_sequence(
           draws, "layer_norm",
           [](const std::string& name, int64_t, int64_t width) { return layer_norm(name, width); });
     }},
    {2,
     [](Draws& draws) {
       return draw_sequence(draws, "position_embedding",
                            [](const std::string& name, int64_t positions, int64_t width) {
                              return position_embedding(name, positions, width);
                            });
     }},
    {4, [](Draws& draws) { return draw_plain(draws, "relu", 1, relu); }},
    {3, [](Draws& draws) { return draw_plain(draws, "tanh", 1, millrace::tanh); }},
    {3, [](Draws& draws) { return draw_plain(draws, "gelu", 1, gelu); }},
    {3,
     [](Draws& draws) {
       return draw_plain(draws, "dropout", 1,
                         [](const std::string& name) { return dropout(name, 0.1); });
     }},
    {2, [](Draws& draws) { return draw_plain(draws, "add", 2, add); }},
};

}  // namespace

const std::vector<int64_t>& drawn_samples() {
  static const std::vector<int64_t> kSamples = {4, 16, 64, 128};
  return kSamples;
}

std::vector<DrawnLayer> draw_layers(int count, uint64_t seed) {
  int shares = 0;
  for (const Kind& kind : kKinds) {
    shares += kind.share;
  }
  std::vector<DrawnLayer> layers;
  std::set<std::string> names;
  for (const Kind& kind : kKinds) {
    const int wanted = std::max(1, count * kind.share / shares);
    const RandomKey key = RandomKey(seed)
                              .with("latency layers")
                              .with(static_cast<uint64_t>(&kind - std::begin(kKinds)));
    int found = 0;
    for (uint64_t attempt = 0; found < wanted; ++attempt) {
      Draws draws(key.with(attempt));
      Candidate candidate = kind.draw(draws);
      if (candidate.fits && names.insert(candidate.drawn.name).second) {
        layers.push_back(std::move(candidate.drawn));
        ++found;
      }
    }
  }
  return layers;
}

}  // namespace millrace::cli
