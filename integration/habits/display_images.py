# SVG, Image and Pillow's images
# %%
from IPython.display import SVG, Image, display

SVG('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><rect width="20" height="10"/></svg>')
# %%
import PIL.Image

image = PIL.Image.new("RGB", (30, 20), "red")
image
# %%
import tempfile

path = tempfile.mkstemp(suffix=".png")[1]
image.save(path)
Image(path)
# %%
display(Image(filename=path, width=10))
print("below")
# %%
Image(url="https://example.com/picture.png")
# %%
image.size
