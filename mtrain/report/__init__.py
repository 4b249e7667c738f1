"""A run or a model in, an HTML page out.

`page.make_page` is `mtrain report`, with the plots of `curves`. `attention_maps` is
`mtrain attention`; `heatmap` draws its maps, and fills the templates of all pages.
"""
