"""Every setting of a run: strict YAML in, a checked `schema.Config` out.

`schema` has the name, type, default, check and description of each setting; `corpora` those of
entries that name text. `loading.load_config` reads a file by `yaml_reader` and refuses what
`conflicts` finds; `advice` words its errors. `changes` lists the settings that a run may change,
`keys` documents all of them, `languages` knows language codes, and `recipe` chooses settings by the
size of a text.
"""
