// Reads the layer graphs that PipeDream's profiler writes (`graph.txt`), so that published profiles
// can be planned and simulated. Used by `millrace profile --from`. A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "millrace/core/profile.h"

namespace millrace {

// One node a line, `<id> -- <description> -- forward_compute_time=<ms>, backward_compute_time=<ms>,
// activation_size=<bytes>, parameter_size=<bytes>`, then one edge a line, a TAB and `<from> --
// <to>` (repository msr-fiddle/pipedream, graph/graph.py). A size may be a list `[a; b]`, meaning
// its sum.
//
// A layer is named `<id>:<type>`, the type being the description's first word. Nodes whose
// description begins with `Input` become layers that cost nothing; nodes without a consumer whose
// description begins with `__getitem__` are left out. The layers stand in an order that depends on
// the edges and ids alone, not on the order of lines. What the format does not say is marked
// `estimated`: the backward counts half as input gradient and half as weight gradient (of a layer
// without parameters all as input gradient), a layer stashes as many bytes as it hands on, or none
// when it says that it works in place (what it overwrote was counted where it was made), updates
// take no time.
//
// `file` is named in errors, `samples` is the minibatch that was profiled, which the format does
// not say either. Throws kBadFile with file and line: a line of neither form, an unknown, missing,
// repeated or negative number, an edge to an unknown node, a node or edge that stands twice, a
// cycle.
Profile profile_from_pipedream_graph(std::string_view text, const std::string& file,
                                     const std::string& model, int64_t samples);

}  // namespace millrace
