// millrace profile --from: a published layer graph becomes a profile.
#include <fmt/format.h>

#include <filesystem>

#include "millrace/base/file.h"
#include "millrace/base/text.h"
#include "millrace/cli/commands.h"
#include "millrace/core/pipedream_graph.h"

namespace millrace::cli {
namespace {

constexpr uint64_t kMostBytes = 64 << 20;  // as of every other document

}  // namespace

int run_import(const ProfileArgs& args, Output& output) {
  const std::string name = std::filesystem::path(args.from).filename().string();
  const Profile profile =
      profile_from_pipedream_graph(read_file(args.from, kMostBytes), args.from,
                                   name.substr(0, name.find('.')), args.samples.value_or(1));
  const Value value = to_value(profile);
  write_file_atomically(args.output, to_json(value) + "\n");
  output.document(value);
  double compute_s = 0;
  double parameter_bytes = 0;
  for (const LayerProfile& layer : profile.layers) {
    compute_s += layer.compute_s();
    parameter_bytes += static_cast<double>(layer.parameter_bytes);
  }
  output.text(fmt::format(
      "{}: {} layers, {} edges, {} a pass over {} sample{}, {} of parameters; written to {}\n",
      profile.model, profile.layers.size(), profile.edges.size(), format_seconds(compute_s),
      profile.samples_per_microbatch, profile.samples_per_microbatch == 1 ? "" : "s",
      format_bytes(parameter_bytes), args.output));
  if (!args.samples) {
    output.text("note: the file does not say how many samples were profiled; --samples N does\n");
  }
  return 0;
}

}  // namespace millrace::cli
