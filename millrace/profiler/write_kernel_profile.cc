// The JSON form of a kernel profile; docs/kernels.md lists its fields.
#include <utility>

#include "millrace/profiler/kernel_profile.h"

namespace millrace {
namespace {

Value to_list(const std::vector<std::string>& texts) {
  Value list = Value::list();
  for (const std::string& text : texts) {
    list.push(Value::of(text));
  }
  return list;
}

Value to_value(const KernelRow& row) {
  Value value = Value::map();
  value.set("kind", Value::of(to_string(row.kind)));
  value.set("name", Value::of(row.name));
  if (row.kind == KernelRowKind::kOperator) {
    value.set("shapes", Value::of(row.shapes));
    value.set("dtype", Value::of(row.dtype));
  }
  value.set("layers", to_list(row.layers));
  value.set("calls", Value::of(row.calls));
  value.set("self_s", Value::of(row.self_s));
  value.set("total_s", Value::of(row.total_s));
  if (row.bytes > 0) {
    value.set("bytes", Value::of(row.bytes));
  }
  if (row.flops > 0) {
    value.set("flops", Value::of(row.flops));
  }
  if (row.alone_s) {
    value.set("alone_s", Value::of(*row.alone_s));
  }
  if (row.ratio()) {
    value.set("ratio", Value::of(*row.ratio()));
  }
  if (row.blocked_s) {
    value.set("blocked_s", Value::of(*row.blocked_s));
  }
  return value;
}

Value to_value(const PointwiseChain& chain) {
  Value rows = Value::list();
  for (const int row : chain.rows) {
    rows.push(Value::of(row));
  }
  Value value = Value::map();
  value.set("rows", std::move(rows));
  value.set("calls", Value::of(chain.calls));
  value.set("total_s", Value::of(chain.total_s));
  value.set("longest_s", Value::of(chain.longest_s));
  return value;
}

Value to_value(const KernelFinding& finding) {
  Value value = Value::map();
  value.set("kind", Value::of(to_string(finding.kind)));
  value.set("what", Value::of(finding.what));
  value.set("layers", to_list(finding.layers));
  value.set("saves_at_most_s", Value::of(finding.saves_at_most_s));
  return value;
}

template <typename T>
Value to_values(const std::vector<T>& items) {
  Value list = Value::list();
  for (const T& item : items) {
    list.push(to_value(item));
  }
  return list;
}

}  // namespace

Value to_value(const KernelProfile& profile) {
  Value root = Value::map();
  root.set("artifact", Value::of("kernels"));
  root.set("version", Value::of(1));
  root.set("model", Value::of(profile.model));
  root.set("machine", Value::of(profile.machine));
  root.set("dtype", Value::of(profile.dtype));
  root.set("samples", Value::of(profile.samples));
  root.set("microbatches", Value::of(profile.microbatches));
  root.set("busy_ranks", Value::of(profile.busy_ranks));
  root.set("threads", Value::of(profile.threads));
  root.set("cores", Value::of(profile.cores));
  root.set("steps", Value::of(profile.steps));
  root.set("step_s", Value::of(profile.step_s));
  root.set("plain_step_s", Value::of(profile.plain_step_s));
  root.set("sum_s", Value::of(profile.sum_s()));
  root.set("rows", to_values(profile.rows));
  root.set("chains", to_values(profile.chains));
  root.set("findings", to_values(profile.findings));
  return root;
}

}  // namespace millrace
