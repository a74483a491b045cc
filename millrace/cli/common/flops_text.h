// Words for FLOPs, as tables of profiles and machines print them.
#pragma once

#include <string>

namespace millrace::cli {

std::string format_flops(double flops);  // "4.20 GFLOP", decimal units; add "/s" for a speed
// "37%" of what is possible; "-" where either is unknown (0).
std::string format_share(double flops, double seconds, double peak_flops_per_s);
// A time and the spread of its repeats: "12.3 ms +-2%"; "-" for no time.
std::string format_spread(double seconds, double spread_s);

}  // namespace millrace::cli
