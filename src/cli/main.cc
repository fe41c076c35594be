// The program `tensorfold`. Everything is in command_line.cc and the commands' files.
#include "cli/command.h"

int main(int argc, char** argv) { return tensorfold::run_command_line(argc, argv); }
