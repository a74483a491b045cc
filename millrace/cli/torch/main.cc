// millrace-torch: the subcommands that need libtorch. Started by `millrace`, which has checked the
// input and set the thread variables; parses the same command line.
#include "millrace/cli/torch/program.h"

int main(int argc, char** argv) { return millrace::run_program(argc, argv); }
