/// Orders of layer events as text, one event a line:
///
///     # two blocks, the second with another inside
///     micro_batch
///       forward block.0             # a whole use
///       begin forward block.1       # a use with others inside …
///         forward block.1.mlp
///       end                         # … up to here
///       backward block.1
///       backward block.0
///     eval                          # forwards only …
///       forward block.0
///     end                           # … up to here
///
/// | line | |
/// | --- | --- |
/// | `micro_batch` | one begins; it lasts until the next one, or the end of the text |
/// | `forward NAME`, `backward NAME` | a use of the unit, begun and ended |
/// | `begin forward NAME`, `begin backward NAME` … `end` | a use with what lies between |
/// | `eval` … `end` | an evaluation pass |
///
/// Words are separated by blanks; blank lines, indentation and what follows a word that begins with
/// `#` mean nothing. A unit name with blanks, quotes or a leading `#` stands in double quotes, in
/// which `\n` is a line break and `\` before any other character stands for that character.
///
/// Thread rules: pure functions, but for reading the file.
#pragma once

#include "troupe/core/error.hpp"
#include "troupe/core/model.hpp"
#include "troupe/layers/layer_order.hpp"

#include <string>
#include <string_view>

namespace troupe {

/// A `Failure` (bad_configuration) names the line, what was found there and what is expected.
Result<LayerOrder> parse_order(std::string_view text, const Model& model);
/// The same for a file; its failures name the path.
Result<LayerOrder> read_order_file(const std::string& path, const Model& model);

/// What `parse_order` reads as `order` again. Throws `Error` (misuse) if `check_order` refuses it
/// or a unit is not one of the model's.
std::string format_order(const LayerOrder& order, const Model& model);

}  // namespace troupe
