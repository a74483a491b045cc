// Fits one LatencyCurve: ridge on logarithms, then a Gaussian process on what the line leaves.
// For planner/latency_model.cc. Pure functions.
#pragma once

#include <vector>

#include "millrace/planner/latency_model.h"

namespace millrace::internal {

// `features`, each equally long, to logarithms of seconds. At least one of each. With `smooth` the
// length of the process and its noise are those, of a few, that predict each observation best from
// all others (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, section
// 5.4.2); without, or with fewer than 8 observations, the line alone.
LatencyCurve fit_curve(const std::vector<std::vector<double>>& features,
                       const std::vector<double>& logarithms, bool smooth);

// The logarithm of seconds.
double evaluate(const LatencyCurve& curve, const std::vector<double>& features);

}  // namespace millrace::internal
