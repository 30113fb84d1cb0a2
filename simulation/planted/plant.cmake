# cmake -DSOURCE=<src/> -DCORES=<paths below src/> -DLIST=<plants.cmake> -DOUT=<folder> -P plant.cmake
#
# Writes copies of CORES into OUT in which each bug of LIST stands beside the right text, chosen at run time, and
# the table of them. Each text that is looked for must be there exactly once: else the build ends, and names the plant.
foreach(core ${CORES})
  file(READ ${SOURCE}/${core} text)
  set_property(GLOBAL PROPERTY "text ${core}" "${text}")
endforeach()
set_property(GLOBAL PROPERTY count 0)
set_property(GLOBAL PROPERTY rows "")

# phx_plant(NAME <name> FILE <core> SEEDS <found within> [FIRST <seed>] [SUCCESSION] WHAT <sentence> FIND <text>
# PUT <text>). PLANTED in PUT is whether this bug is chosen. FIRST: the seed that is tried first. SUCCESSION: it is
# looked for in worlds whose masters are lost.
function(phx_plant)
  cmake_parse_arguments(PARSE_ARGV 0 ARG "SUCCESSION" "NAME;FILE;SEEDS;FIRST;WHAT;FIND;PUT" "")
  get_property(text GLOBAL PROPERTY "text ${ARG_FILE}")
  get_property(count GLOBAL PROPERTY count)
  string(FIND "${text}" "${ARG_FIND}" begin)
  string(FIND "${text}" "${ARG_FIND}" last REVERSE)
  if(begin EQUAL -1 OR NOT begin EQUAL last)
    message(FATAL_ERROR "simulation/planted/plants.cmake: ${ARG_NAME}: src/${ARG_FILE} must hold this text exactly "
                        "once; adapt the plant to the core as it is now:\n${ARG_FIND}")
  endif()
  string(REPLACE "PLANTED" "(::phalanx::simulation::chosen_plant == ${count})" put "${ARG_PUT}")
  string(REPLACE "${ARG_FIND}" "${put}" text "${text}")
  set_property(GLOBAL PROPERTY "text ${ARG_FILE}" "${text}")
  string(TOLOWER ${ARG_SUCCESSION} succession)
  set(first 1)
  if(DEFINED ARG_FIRST)
    set(first ${ARG_FIRST})
  endif()
  set_property(GLOBAL APPEND_STRING PROPERTY rows
               "    {\"${ARG_NAME}\", \"${ARG_WHAT}\", ${ARG_SEEDS}, ${first}, ${succession}},\n")
  math(EXPR count "${count} + 1")
  set_property(GLOBAL PROPERTY count ${count})
endfunction()

include(${LIST})

foreach(core ${CORES})
  get_property(text GLOBAL PROPERTY "text ${core}")
  string(REPLACE "/" "_" name ${core})
  file(WRITE ${OUT}/${name} "#include \"simulation/plants.h\"\n${text}")
endforeach()
get_property(rows GLOBAL PROPERTY rows)
file(WRITE ${OUT}/plant_table.h "// Written by simulation/planted/plant.cmake.\n${rows}")
