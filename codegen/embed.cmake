# Writes OUT, a C header with one NUL-terminated array per file of IN (paths
# separated by |): `prelude_cpu.inc` becomes `static const char prelude_cpu_inc[]`.
string(REPLACE "|" ";" files "${IN}")
set(header "")
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND header "static const char ${name}[] = {${bytes}0};\n")
endforeach()
file(WRITE ${OUT} "${header}")
