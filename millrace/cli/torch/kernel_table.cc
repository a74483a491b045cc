#include "millrace/cli/torch/kernel_table.h"

#include <fmt/format.h>

#include <vector>

#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr double kLeastShare = 0.005;
constexpr std::size_t kMostFindings = 12;
constexpr std::size_t kMostLayers = 4;

std::string share_text(double seconds, double of_s) {
  return fmt::format("{:.1f}%", 100 * seconds / of_s);
}

// "aten::mm [16, 64] [64, 32]s", or "layer batch_norm2d".
std::string primitive(const KernelRow& row) {
  return row.kind == KernelRowKind::kOperator ? fmt::format("{} {}", row.name, row.shapes)
         : row.name == to_string(row.kind)    ? row.name
                                              : fmt::format("{} {}", to_string(row.kind), row.name);
}

std::vector<std::string> cells(const KernelRow& row, double step_s) {
  const double call_s = row.calls > 0 ? row.self_s / row.calls : 0;
  const auto rate = [call_s](double amount) {
    return amount > 0 && call_s > 0 ? fmt::format("{:.1f}", amount / call_s * 1e-9) : "";
  };
  return {primitive(row),
          row.calls > 0 ? fmt::format("{:.4g}", row.calls) : "",
          format_seconds(row.self_s),
          share_text(row.self_s, step_s),
          row.alone_s ? format_seconds(*row.alone_s) : "",
          row.ratio() ? fmt::format("{:.2f}", *row.ratio()) : "",
          rate(row.flops),
          rate(row.bytes)};
}

std::string place_text(std::vector<std::string> layers) {
  if (layers.empty()) {
    return "";
  }
  const std::size_t more = layers.size() > kMostLayers ? layers.size() - kMostLayers : 0;
  layers.resize(layers.size() - more);
  return fmt::format(" (in {}{})", join(layers, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

std::string kernel_table(const KernelProfile& profile) {
  TextTable table(
      {"primitive", "calls", "a step", "share", "alone, a call", "ratio", "GFLOP/s", "GB/s"});
  std::size_t folded = 0;
  double folded_s = 0;
  for (const KernelRow& row : profile.rows) {
    if (row.self_s < kLeastShare * profile.step_s) {
      ++folded;
      folded_s += row.self_s;
    } else {
      table.row(cells(row, profile.step_s));
    }
  }
  if (folded > 0) {
    table.row({fmt::format("{} more", folded), "", format_seconds(folded_s),
               share_text(folded_s, profile.step_s), "", "", "", ""});
  }
  std::string text = table.str();
  text += fmt::format(
      "{} a step of {} x {} samples, mean of {} that were recorded; {} where they were not; "
      "{} ranks busy on {} cores; rows sum to {}\n",
      format_seconds(profile.step_s), profile.microbatches, profile.samples, profile.steps,
      format_seconds(profile.plain_step_s), profile.busy_ranks, profile.cores,
      share_text(profile.sum_s(), profile.step_s));
  if (profile.findings.empty()) {
    return text + "nothing to mend above a thousandth of the step\n";
  }
  text += "\nwhat to mend, by what it would save at most a step\n";
  for (std::size_t f = 0; f < profile.findings.size() && f < kMostFindings; ++f) {
    const KernelFinding& finding = profile.findings[f];
    text += fmt::format("{:>3}. {} ({}) {}: {}{}\n", f + 1, format_seconds(finding.saves_at_most_s),
                        share_text(finding.saves_at_most_s, profile.step_s),
                        to_string(finding.kind), finding.what, place_text(finding.layers));
  }
  if (profile.findings.size() > kMostFindings) {
    text += fmt::format("     and {} smaller ones\n", profile.findings.size() - kMostFindings);
  }
  return text;
}

}  // namespace millrace::cli
