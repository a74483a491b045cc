// The time-by-rank figure of a trace as pieces of SVG, which the SVG file and the HTML page put
// together: lanes with a box for each action, the microbatch in it where it fits, and each rank's
// bubble and stash beside its lane. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "millrace/core/trace.h"
#include "millrace/report/report.h"

namespace millrace::internal {

// All pieces but the legend are as high as `height` and begin at y = 0; x begins at 0 in each.
struct Figure {
  std::string heading;  // as markup: the title, and which steps are shown of a long trace
  std::string summary;  // as markup: bubble of all ranks, window, where it comes from
  double height = 0;
  double label_width = 0;
  std::string labels;
  double plot_width = 0;
  double narrowest = 0;  // box of a computation
  // Boxes stand in groups of class x, whose coordinates may be scaled; numbers in groups of class n
  // have in data-w the width of their box (with `scalable`).
  std::string plot;
  double facts_width = 0;
  std::string facts;
  double legend_width = 0;
  double legend_height = 0;
  std::string legend;
  std::string style;  // CSS of the boxes' colours
};

// What a box must be at least as wide as, in pixels, for its number of `digits` characters.
double width_of_number(std::size_t digits);

// With `scalable` every box has its number, for a script that hides those that do not fit.
Figure draw_figure(const Trace& trace, const std::string& title, TraceClock clock, bool scalable);

// CSS of everything but the boxes' colours, on paper.
extern const char* const kFigureStyle;
// <defs> that the pieces refer to.
extern const char* const kFigureDefinitions;

}  // namespace millrace::internal
