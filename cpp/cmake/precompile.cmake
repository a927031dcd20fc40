# Headers that most files of a target include, compiled once. What a file needs it still includes itself: a build with
# -DJAXEXP_PRECOMPILE=OFF, such as the one with sanitizers, has to work.
option(JAXEXP_PRECOMPILE "Compile common headers once for each target" ON)
function(jaxexp_precompile target)
  if(JAXEXP_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
