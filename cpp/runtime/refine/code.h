// The code of a module in memory: operations with their operands, results and regions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "wire/bytecode/cursor.h"
#include "wire/bytecode/sections.h"

namespace jaxexp::runtime::refine {

/// The number of a kind of operation, an attribute, a type, or a value.
using Id = std::uint32_t;

struct Block;

/// Has one block, or none.
using Region = std::vector<Block>;

struct Operation {
  Id kind = 0, location = 0;
  std::optional<Id> dictionary;  // an attribute
  std::optional<Id> properties;  // a number in the section for that; of kinds that are not registered, an attribute
  std::vector<Id> results;       // types
  Id first_result = 0;           // the value; the other results follow
  std::vector<Id> operands;      // values
  std::vector<Region> regions;
  bool is_isolated = false;   // its regions use nothing from outside
  bool is_removable = false;  // it does nothing but compute its results
  bool is_used = false;
};

struct Block {
  struct Argument {
    Id type;
    std::optional<Id> location;
  };

  std::vector<Argument> arguments;
  Id first_argument = 0;  // the value
  std::vector<Operation> operations;
};

/// What a module has at its top, and how many values all of it has.
struct Code {
  Block top;
  Id values = 0;
};

/// Reads the section of a module that was checked (wire/bytecode/bytecode.h). Throws RunError for code that jumps
/// between blocks.
Code read_code(wire::Cursor section, std::uint64_t version);

/// The same without the code of functions, as far as it has sections of its own: since version 2 of bytecode. Takes
/// time in proportion to the number of functions then. Their values have no numbers.
Block read_heads(wire::Cursor section, std::uint64_t version);

/// What `read_code` reads. Values are numbered anew, so each has to be used where it is known.
std::string written(const Block& top, std::uint64_t version);

}  // namespace jaxexp::runtime::refine
